#include "core/isa.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {
namespace {

#define AGENTKV_ISA_NAME(isa, ...) #isa,
constexpr std::string_view kNames[] = {AGENTKV_EACH_ISA(AGENTKV_ISA_NAME)};
#undef AGENTKV_ISA_NAME

#if defined(__x86_64__)
// Whether the processor has AMX's tiles of bytes and the system lets this process use them: the registers are so large
// that Linux keeps them only for those who ask. It refuses where a thread's signal stack would be too small for them.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTile) == 0 || (d & kInt8) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}
#endif

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
  if (isa == "v4amx") return v4vnni && may_use_tiles();
#elif defined(__aarch64__) && defined(__linux__)
  if (isa == "dotprod") return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
  if (isa == "dotprod") return true;  // every Mac with an Arm processor
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
