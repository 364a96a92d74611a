// What packing refuses, and packed weights in a file that is mapped.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <vector>

#include "core/errors.h"
#include "cpp/check.h"
#include "cpu/linear/linear.h"
#include "cpu/linear/packed_linear.h"
#include "linear/weights.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

void check_shapes() {
  CHECK_THROWS(check_linear_shape({0, 32, 4, 32}), InvalidTensor, "0 outputs");
  CHECK_THROWS(check_linear_shape({8, -32, 4, 32}), InvalidTensor, "-32 inputs");
  CHECK_THROWS(check_linear_shape({8, 32, 5, 32}), InvalidTensor, "5 bits", "4, 8 and 32");
  CHECK_THROWS(check_linear_shape({8, 32, 4, 16}), InvalidTensor, "group of 16", "32, 64 or 128");
  CHECK_THROWS(check_linear_shape({8, 96, 4, 64}), InvalidTensor, "96 inputs", "groups of 64");
  CHECK_THROWS(check_linear_shape({8, 96, 8, 32}), InvalidTensor, "group of 32", "all 96");
  CHECK_THROWS(check_linear_shape({8, 65537, 8, 65537}), InvalidTensor, "65537 inputs", "at most 65536");
  // A nibble an input, two bytes a group, a float an output; outputs by 32.
  CHECK_EQ(packed_linear_bytes({33, 64, 4, 32}), std::size_t{64 * (32 + 2 * 2 + 4)});
  CHECK_EQ(packed_linear_bytes({33, 128, 4, 128}), std::size_t{64 * (64 + 2 * 2 + 4)});
  CHECK_EQ(packed_linear_bytes({32, 70, 8, 70}), std::size_t{32 * (128 + 8)});
}

void check_refusals() {
  const LinearShape shape{33, 64, 4, 32};
  const Weights good(shape, 1);
  AlignedBytes bytes(packed_linear_bytes(shape));
  std::ranges::fill(bytes.span(), std::byte{0x5a});
  const auto refused = [&](const Weights& weights, std::span<std::byte> out, const char* why) {
    CHECK_THROWS(pack_linear(shape, weights.codes, weights.scales, out), InvalidTensor, why);
    for (const std::byte byte : bytes.span()) CHECK(byte == std::byte{0x5a});
  };
  Weights bad = good;
  bad.codes.pop_back();
  refused(bad, bytes.span(), "2111 codes for a weight of 2112");
  bad = good;
  bad.scales.push_back(1);
  refused(bad, bytes.span(), "67 scales for 66");
  refused(good, bytes.span().first(100), "100 bytes");
  for (const std::int8_t code : {8, -9}) {
    bad = good;
    bad.codes.back() = code;
    refused(bad, bytes.span(), "[-8, 7]");
  }
  for (const float scale :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), -0x1p100f}) {
    bad = good;
    bad.scales.back() = scale;
    refused(bad, bytes.span(), "2^100");
  }
  CHECK_THROWS(PackedLinear(shape, bytes.span().first(64)), InvalidTensor, "64 bytes");
  AlignedBytes wide(bytes.span().size() + 64);
  CHECK_THROWS(PackedLinear(shape, wide.span().subspan(32, bytes.span().size())), InvalidTensor, "multiple of 64");
}

// Page-aligned in a file, and read only.
void check_mapped() {
  const LinearShape shape{70, 96, 4, 32};
  const Weights weights(shape, 2);
  AlignedBytes bytes = weights.packed();
  char path[] = "/tmp/agentkv_linear_XXXXXX";
  const int fd = mkstemp(path);
  CHECK(fd >= 0);
  unlink(path);
  const std::size_t size = bytes.span().size();
  CHECK_EQ(write(fd, bytes.span().data(), size), static_cast<ssize_t>(size));
  void* mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  CHECK(mapped != MAP_FAILED);

  std::vector<float> x(96 * 20);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 5;
  QuantizedRows rows;
  rows.assign(x.data(), 20, 96, 96, nullptr);
  std::vector<float> from_memory(70 * 20), from_file(70 * 20);
  linear(rows, PackedLinear(shape, bytes.span()), {}, from_memory.data(), 70, nullptr);
  linear(rows, PackedLinear(shape, {static_cast<const std::byte*>(mapped), size}), {}, from_file.data(), 70, nullptr);
  CHECK(from_memory == from_file);
  CHECK(from_file.front() != 0.0f);
  munmap(mapped, size);
  close(fd);
}

}  // namespace

int main() {
  check_shapes();
  check_refusals();
  check_mapped();
}
