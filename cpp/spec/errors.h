// Errors of drafters. Each message names the value and the bound it broke.
#pragma once

#include "core/errors.h"

namespace agentkv {

// Options of a drafter outside their range.
struct InvalidDrafter : Error {
  using Error::Error;
};

}  // namespace agentkv
