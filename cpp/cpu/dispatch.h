// Picks the kernels for the machine at run time.
#pragma once

#include <string_view>
#include <vector>

#include "cpu/kernels/table.h"

namespace agentkv::cpu {

// The instruction sets this build and this machine both have, best first: of "v4", "v3", "v2" (x86-64 levels) on x86,
// "base" elsewhere.
std::vector<std::string_view> available_isas();

// The kernels in use: the best available, or what the environment variable AGENTKV_CPU_ISA names when the process first
// asks. Throws InvalidTensor when it names none of available_isas().
const KernelTable& kernels();

// Uses another instruction set from the next attend() on (tests and measurements). Throws InvalidTensor when it is not
// available. Levels with and without FMA (v2) differ in the last bits.
void set_isa(std::string_view isa);

}  // namespace agentkv::cpu
