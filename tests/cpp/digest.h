// What kernels compute, as one number that is the same wherever their bits are, and tables of such numbers.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/isa.h"
#include "cpp/check.h"

namespace agentkv::testing {

// FNV-1a of 64 bits.
class Digest {
 public:
  // All NaNs are one: processors differ in the sign of those that they make.
  void add(std::span<const float> numbers) {
    for (const float x : numbers) mix(std::isnan(x) ? 0x7fc00000u : std::bit_cast<std::uint32_t>(x));
  }
  void add(std::span<const double> numbers) {
    for (const double x : numbers) mix(std::isnan(x) ? 0x7ff8000000000000u : std::bit_cast<std::uint64_t>(x));
  }
  void add(std::span<const std::byte> bytes) {
    for (const std::byte each : bytes) mix(static_cast<std::uint64_t>(each));
  }

  std::string text() const {
    char digits[17];
    std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(state_));
    return digits;
  }

 private:
  void mix(std::uint64_t x) { state_ = (state_ ^ x) * 0x100000001b3u; }

  std::uint64_t state_ = 0xcbf29ce484222325u;
};

struct DigestRow {
  std::string name;
  std::function<void(Digest&)> compute;

  std::string digest() const {
    Digest digest;
    compute(digest);
    return digest.text();
  }
};

// The only instruction set without a fused multiply-add; a table has rows of its own for what differs there.
inline constexpr std::string_view kUnfused = "v2";
inline std::string unfused(const std::string& name) { return name + ", " + std::string(kUnfused); }

// Lines of a digest, two blanks and a name.
inline std::map<std::string, std::string> read_digests(const char* path) {
  std::map<std::string, std::string> digests;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.size() > 18 && line[0] != '#') digests[line.substr(18)] = line.substr(0, 16);
  }
  return digests;
}

// Every row on every instruction set of this machine against the table. Returns how many of them differ.
inline int count_wrong(const std::vector<DigestRow>& rows, const char* path) {
  std::map<std::string, std::string> table = read_digests(path), unused = table;
  int wrong = 0;
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    for (const DigestRow& row : rows) {
      unused.erase(row.name), unused.erase(unfused(row.name));
      const bool apart = isa == kUnfused && table.contains(unfused(row.name));
      const std::string got = row.digest(), want = table[apart ? unfused(row.name) : row.name];
      if (got == want) continue;
      ++wrong;
      std::fprintf(stderr, "%s on %s: %s and not %s\n", row.name.c_str(), std::string(isa).c_str(), got.c_str(),
                   want.c_str());
    }
  }
  for (const auto& [name, digest] : unused) std::fprintf(stderr, "%s: a digest of nothing\n", name.c_str());
  return wrong + static_cast<int>(unused.size());
}

// The table as this machine computes it, which needs to be one that has kUnfused.
inline void print_digests(const std::vector<DigestRow>& rows, const char* title) {
  std::printf("# %s\n", title);
  for (const DigestRow& row : rows) {
    set_isa(available_isas().front());
    const std::string digest = row.digest();
    std::printf("%s  %s\n", digest.c_str(), row.name.c_str());
    set_isa(kUnfused);
    if (const std::string other = row.digest(); other != digest) {
      std::printf("%s  %s\n", other.c_str(), unfused(row.name).c_str());
    }
  }
}

// What `main` of a test of digests returns; with an argument, --print, it prints the table anew.
inline int check_digests(const std::vector<DigestRow>& rows, const char* path, const char* title, int argc,
                         char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--print") {
    print_digests(rows, title);
    return 0;
  }
  CHECK(!rows.empty());
  CHECK_EQ(count_wrong(rows, path), 0);
  return 0;
}

}  // namespace agentkv::testing
