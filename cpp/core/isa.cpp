#include "core/isa.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string>

#include "core/errors.h"
#include "core/message.h"
#include "platform/cpu.h"

namespace agentkv {
namespace {

#define AGENTKV_ISA_NAME(isa, ...) #isa,
constexpr std::string_view kNames[] = {AGENTKV_EACH_ISA(AGENTKV_ISA_NAME)};
#undef AGENTKV_ISA_NAME

bool machine_has(std::string_view isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (isa == "v3") return v3;
  if (isa == "v3vnni") return v3 && __builtin_cpu_supports("avxvnni");
  if (isa == "v4") return v4;
  const bool v4vnni = v4 && __builtin_cpu_supports("avx512vnni");
  if (isa == "v4vnni") return v4vnni;
  if (isa == "v4amx") return v4vnni && platform::may_use_tiles();
#elif defined(__aarch64__)
  if (isa == "dotprod") return platform::has_dot_products();
#endif
  return isa == kNames[0];
}

std::size_t find(std::string_view wanted) {
  std::string names;
  for (const std::string_view name : available_isas()) {
    if (name == wanted) {
      return static_cast<std::size_t>(std::find(std::begin(kNames), std::end(kNames), name) - std::begin(kNames));
    }
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw InvalidTensor(error_text("instruction set '", wanted, "' is not one of ", names));
}

std::atomic<std::size_t>& current() {
  static std::atomic<std::size_t> index = [] {
    const char* wanted = std::getenv("AGENTKV_CPU_ISA");
    return find(wanted != nullptr && *wanted != '\0' ? wanted : available_isas().front());
  }();
  return index;
}

}  // namespace

std::vector<std::string_view> available_isas() {
  std::vector<std::string_view> names;
  for (auto name = std::rbegin(kNames); name != std::rend(kNames); ++name) {
    if (machine_has(*name)) names.push_back(*name);
  }
  return names;
}

std::size_t isa_index() { return current().load(std::memory_order_relaxed); }

std::string_view isa() { return kNames[isa_index()]; }

void set_isa(std::string_view isa) { current().store(find(isa), std::memory_order_relaxed); }

}  // namespace agentkv
