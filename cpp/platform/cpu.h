// What the system says of the processor, where the processor itself does not tell or the system has to allow it.
#pragma once

namespace agentkv::platform {

// Whether this is an x86-64 with AMX's tiles of bytes, and the system lets this process use them.
bool may_use_tiles() noexcept;

// Whether this is an Arm processor with dot products of bytes.
bool has_dot_products() noexcept;

}  // namespace agentkv::platform
