#include "executorch/threads.h"

#include <executorch/extension/threadpool/threadpool_guard.h>
#include <executorch/runtime/core/function_ref.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "core/errors.h"

// The thread pool library exports this class but the wheel ships no header for it. Only members that are called are
// declared; objects are made and owned by the library.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  std::size_t get_thread_count() const;
  bool _unsafe_reset_threadpool(std::uint32_t num_threads);
  void run(::executorch::runtime::FunctionRef<void(std::size_t)> task, std::size_t range);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

namespace agentkv {
namespace {

using executorch::extension::threadpool::NoThreadPoolGuard;

constexpr std::size_t kMaxThreads = 1024;

// Alone in its lines of a cache: threads write to it while they read what lies beside it on the caller's stack.
struct alignas(128) Counter {
  std::atomic<std::size_t> value{0};
};

std::shared_mutex& gate() {
  static std::shared_mutex mutex;
  return mutex;
}

std::atomic<std::uint64_t>& generation() {
  static std::atomic<std::uint64_t> count{0};
  return count;
}

}  // namespace

std::uint64_t pool_generation() { return generation().load(); }

std::size_t get_threads() {
  auto* pool = executorch::extension::threadpool::get_threadpool();
  return pool == nullptr ? 1 : pool->get_thread_count();
}

void set_threads(std::size_t n) {
  if (n < 1 || n > kMaxThreads) {
    throw Error("set_threads: " + std::to_string(n) + " threads asked for; give 1 to " + std::to_string(kMaxThreads));
  }
  const std::unique_lock lock(gate());
  auto* pool = executorch::extension::threadpool::get_threadpool();
  if (pool == nullptr) throw Error("set_threads: the process has no thread pool");
  if (pool->get_thread_count() == n) return;
  generation().fetch_add(1);  // also when it fails: the old pool may be gone
  if (!pool->_unsafe_reset_threadpool(static_cast<std::uint32_t>(n))) {
    throw Error("set_threads: a pool of " + std::to_string(n) + " threads could not be made");
  }
}

void parallel_for(std::size_t n_tasks, const std::function<void(std::size_t)>& task) {
  const std::size_t n_threads = n_tasks < 2 || NoThreadPoolGuard::is_enabled() ? 1 : get_threads();
  if (n_threads < 2) {
    for (std::size_t i = 0; i < n_tasks; ++i) task(i);
    return;
  }
  Counter next;
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  std::mutex error_mutex;
  // One pool item per thread; each draws tasks from the shared counter.
  auto drain = [&](std::size_t) {
    for (std::size_t i; !failed.load(std::memory_order_relaxed) && (i = next.value.fetch_add(1)) < n_tasks;) {
      try {
        task(i);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        failed.store(true, std::memory_order_relaxed);
      }
    }
  };
  executorch::extension::threadpool::get_threadpool()->run(drain, std::min(n_threads, n_tasks));
  if (error) std::rethrow_exception(error);
}

OneThread::OneThread(bool wanted) : before_(NoThreadPoolGuard::is_enabled()) {
  NoThreadPoolGuard::set_enabled(before_ || wanted);
}
OneThread::~OneThread() { NoThreadPoolGuard::set_enabled(before_); }

ForwardGate::ForwardGate() { gate().lock_shared(); }
ForwardGate::~ForwardGate() { gate().unlock_shared(); }

}  // namespace agentkv
