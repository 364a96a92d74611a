// What the system says of the processor is said of the right one, and each time the same.
#include "cpp/check.h"
#include "platform/cpu.h"

using namespace agentkv::platform;

int main() {
#if defined(__x86_64__)
  CHECK(!has_dot_products());
#else
  CHECK(!may_use_tiles());
#endif
  CHECK_EQ(may_use_tiles(), may_use_tiles());
  CHECK_EQ(has_dot_products(), has_dot_products());
}
