#include "cpu/dispatch.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "core/errors.h"

namespace agentkv::cpu {

#if defined(__x86_64__)
extern const KernelTable kernels_v2, kernels_v3, kernels_v4;
#else
extern const KernelTable kernels_base;
#endif

namespace {

std::vector<const KernelTable*> available() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (v4) tables.push_back(&kernels_v4);
  if (v3) tables.push_back(&kernels_v3);
  tables.push_back(&kernels_v2);
#else
  tables.push_back(&kernels_base);
#endif
  return tables;
}

const KernelTable* find(std::string_view isa) {
  std::string names;
  for (const KernelTable* table : available()) {
    if (isa == table->isa) return table;
    names += names.empty() ? "" : ", ";
    names += table->isa;
  }
  throw InvalidTensor("instruction set '" + std::string(isa) + "' is not one of " + names);
}

std::atomic<const KernelTable*>& current() {
  static std::atomic<const KernelTable*> table = [] {
    const char* wanted = std::getenv("AGENTKV_CPU_ISA");
    return wanted != nullptr && *wanted != '\0' ? find(wanted) : available().front();
  }();
  return table;
}

}  // namespace

std::vector<std::string_view> available_isas() {
  std::vector<std::string_view> names;
  for (const KernelTable* table : available()) names.emplace_back(table->isa);
  return names;
}

const KernelTable& kernels() { return *current().load(std::memory_order_relaxed); }

void set_isa(std::string_view isa) { current().store(find(isa), std::memory_order_relaxed); }

}  // namespace agentkv::cpu
