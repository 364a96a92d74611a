// One thread runs everything, whoever asks; results and exceptions come back to the asker.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/errors.h"
#include "cpp/check.h"
#include "mlx/owner.h"

using namespace agentkv;
using namespace agentkv::mlx;

namespace {

void test_one_thread_for_all() {
  const std::thread::id owner = on_owner([] { return std::this_thread::get_id(); });
  CHECK(owner != std::this_thread::get_id());
  CHECK(!is_owner());
  CHECK(on_owner([] { return is_owner(); }));

  int count = 0;  // of no atomic type: one thread alone touches it
  std::atomic<int> elsewhere = 0;
  std::vector<std::thread> askers;
  for (int i = 0; i < 8; ++i) {
    askers.emplace_back([&] {
      for (int j = 0; j < 500; ++j) {
        on_owner([&] {
          ++count;
          if (std::this_thread::get_id() != owner) ++elsewhere;
        });
      }
    });
  }
  for (std::thread& asker : askers) asker.join();
  CHECK_EQ(count, 8 * 500);
  CHECK_EQ(elsewhere.load(), 0);
}

void test_errors_and_nesting() {
  CHECK_THROWS(on_owner([] { throw InvalidRange("cell 7"); }), InvalidRange, "cell 7");
  CHECK_THROWS(on_owner([]() -> int { return on_owner([]() -> int { throw std::runtime_error("inner"); }); }),
               std::runtime_error, "inner");
  CHECK_EQ(on_owner([] { return 1 + on_owner([] { return 2; }); }), 3);
}

void test_forked_child_is_refused() {
  on_owner([] {});
  const pid_t child = fork();
  if (child == 0) {
    try {
      on_owner([] {});
    } catch (const ForwardFailed&) {
      _exit(7);
    }
    _exit(1);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 7);
}

}  // namespace

int main() {
  test_one_thread_for_all();
  test_errors_and_nesting();
  test_forked_child_is_refused();
}
