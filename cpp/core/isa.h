// The vector instruction sets that kernels are compiled for, and which one of them the process uses.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

// APPLY(isa, base, dot, ...) for each: the levels of x86-64, or the one set that every machine of another kind has; the
// same with integer dot products; and the best of those with integer matrix products (AMX). Kernels that have no use
// for matrices are those of `dot`, and kernels that have none for dot products those of `base`.
#if defined(__x86_64__)
#define AGENTKV_EACH_ISA(APPLY, ...)     \
  APPLY(v2, v2, v2, __VA_ARGS__)         \
  APPLY(v3, v3, v3, __VA_ARGS__)         \
  APPLY(v3vnni, v3, v3vnni, __VA_ARGS__) \
  APPLY(v4, v4, v4, __VA_ARGS__)         \
  APPLY(v4vnni, v4, v4vnni, __VA_ARGS__) \
  APPLY(v4amx, v4, v4vnni, __VA_ARGS__)
#elif defined(__aarch64__)
#define AGENTKV_EACH_ISA(APPLY, ...) APPLY(base, base, base, __VA_ARGS__) APPLY(dotprod, base, dotprod, __VA_ARGS__)
#else
#define AGENTKV_EACH_ISA(APPLY, ...) APPLY(base, base, base, __VA_ARGS__)
#endif

// Defines `const Table& name()`: the kernels for the instruction set in use. The tables `name_<isa>` come from a source
// that is compiled once per base; for DEFINE_DOT_KERNELS, once per set with or without dot products; for
// DEFINE_MATRIX_KERNELS, once per instruction set (cmake/KernelsPerIsa.cmake).
#define AGENTKV_DEFINE_KERNELS(Table, name) \
  AGENTKV_DEFINE_TABLE(Table, name, AGENTKV_DECLARE_BASE_TABLE, AGENTKV_ADDRESS_OF_BASE_TABLE)
#define AGENTKV_DEFINE_DOT_KERNELS(Table, name) \
  AGENTKV_DEFINE_TABLE(Table, name, AGENTKV_DECLARE_DOT_TABLE, AGENTKV_ADDRESS_OF_DOT_TABLE)
#define AGENTKV_DEFINE_MATRIX_KERNELS(Table, name) \
  AGENTKV_DEFINE_TABLE(Table, name, AGENTKV_DECLARE_TABLE, AGENTKV_ADDRESS_OF_TABLE)

#define AGENTKV_DEFINE_TABLE(Table, name, DECLARE, ADDRESS)                            \
  AGENTKV_EACH_ISA(DECLARE, Table, name)                                               \
  const Table& name() {                                                                \
    static constexpr const Table* tables[] = {AGENTKV_EACH_ISA(ADDRESS, Table, name)}; \
    return *tables[isa_index()];                                                       \
  }
#define AGENTKV_DECLARE_TABLE(isa, base, dot, Table, name) extern const Table name##_##isa;
#define AGENTKV_ADDRESS_OF_TABLE(isa, base, dot, Table, name) &name##_##isa,
#define AGENTKV_DECLARE_DOT_TABLE(isa, base, dot, Table, name) extern const Table name##_##dot;
#define AGENTKV_ADDRESS_OF_DOT_TABLE(isa, base, dot, Table, name) &name##_##dot,
#define AGENTKV_DECLARE_BASE_TABLE(isa, base, dot, Table, name) extern const Table name##_##base;
#define AGENTKV_ADDRESS_OF_BASE_TABLE(isa, base, dot, Table, name) &name##_##base,

namespace agentkv {

// Those that this build and this machine both have, best first.
std::vector<std::string_view> available_isas();

// The best one that is available, or the one that the environment variable AGENTKV_CPU_ISA names when the process first
// asks. Throws InvalidTensor when it names none of available_isas().
std::string_view isa();
std::size_t isa_index();  // its place in AGENTKV_EACH_ISA

// Uses another one from the next call of a kernel on (tests and measurements). Throws InvalidTensor when it is not
// available. Attention at a level without FMA (v2) differs from the others in the last bits.
void set_isa(std::string_view isa);

}  // namespace agentkv
