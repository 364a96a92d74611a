// Branches outside of the cache, as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/engine.h"

namespace agentkv {

void bind_stored_verbs(nanobind::class_<Engine>& engine);

}  // namespace agentkv
