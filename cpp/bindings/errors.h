// The errors of core/errors.h as Python exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "core/errors.h"

namespace agentkv {

// An exception that is not raised: what a report says of a job that failed.
nanobind::object exception_of(ErrorKind kind, const std::string& message);

}  // namespace agentkv
