// This process.
#pragma once

#include <cstdint>

namespace agentkv::platform {

// A forked child has another one.
std::int64_t process_id() noexcept;

}  // namespace agentkv::platform
