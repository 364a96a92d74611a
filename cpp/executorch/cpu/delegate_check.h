// What a delegate's program must be before it runs.
#pragma once

#include <string>

#include "executorch/cpu/delegate_blob.h"

namespace agentkv::delegate {

inline constexpr char kOwner[] = "attention delegate";

[[noreturn]] void damaged(const std::string& what);

// Throws ProgramError unless every view stays inside its buffer for any number of rows, so that execute need not look
// again, and goes with the others of its instruction.
void check_instructions(const Blob& blob);

}  // namespace agentkv::delegate
