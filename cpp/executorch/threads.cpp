#include "executorch/threads.h"

#include <executorch/extension/threadpool/threadpool_guard.h>
#include <executorch/runtime/core/function_ref.h>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

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
using executorch::extension::threadpool::ThreadPool;

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

// The pool is built without ThreadSanitizer, which cannot see how it orders what one thread does after another. It is
// told: whatever came before hand_over(at) is done where take_over(at) follows.
void hand_over([[maybe_unused]] void* at) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(at);
#endif
}

void take_over([[maybe_unused]] void* at) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(at);
#endif
}

// Tasks that threads draw from a shared counter.
class Tasks {
 public:
  Tasks(std::size_t n, const std::function<void(std::size_t)>& task) : n_(n), task_(task) {}

  // On that many threads of the pool, of which each calls this object once. Rethrows the first exception of a task.
  void run(ThreadPool& pool, std::size_t threads) {
    hand_over(&next_);
    pool.run(*this, threads);
    take_over(&failed_);
    if (error_) std::rethrow_exception(error_);
  }

  void operator()(std::size_t) {
    take_over(&next_);
    for (std::size_t i; !failed_.load(std::memory_order_relaxed) && (i = next_.value.fetch_add(1)) < n_;) {
      try {
        task_(i);
      } catch (...) {
        const std::lock_guard lock(error_mutex_);
        if (!error_) error_ = std::current_exception();
        failed_.store(true, std::memory_order_relaxed);
      }
    }
    hand_over(&failed_);
  }

 private:
  const std::size_t n_;
  const std::function<void(std::size_t)>& task_;
  Counter next_;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  std::mutex error_mutex_;
};

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
  Tasks(n_tasks, task).run(*executorch::extension::threadpool::get_threadpool(), std::min(n_threads, n_tasks));
}

OneThread::OneThread(bool wanted) : before_(NoThreadPoolGuard::is_enabled()) {
  NoThreadPoolGuard::set_enabled(before_ || wanted);
}
OneThread::~OneThread() { NoThreadPoolGuard::set_enabled(before_); }

ForwardGate::ForwardGate() { gate().lock_shared(); }
ForwardGate::~ForwardGate() { gate().unlock_shared(); }

}  // namespace agentkv
