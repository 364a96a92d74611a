#include "mlx/owner.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <semaphore>
#include <thread>

#include "core/errors.h"
#include "core/message.h"
#include "platform/process.h"

namespace agentkv::mlx {
namespace {

struct Job {
  const std::function<void()>& work;
  std::exception_ptr error = nullptr;
  std::binary_semaphore done{0};
};

thread_local bool this_thread_owns = false;

class Owner {
 public:
  // Never destroyed: caches may outlive the statics of every library, and their arrays end on this thread.
  static Owner& instance() {
    static Owner& owner = *new Owner;
    return owner;
  }

  void run(const std::function<void()>& work) {
    if (const std::int64_t process = platform::process_id(); process != process_) {
      throw ForwardFailed(error_text("MLX runs in process ", process_, "; process ", process,
                                     " was forked from it and cannot use it: spawn it instead"));
    }
    Job job{work};
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(&job);
    }
    wake_.notify_one();
    job.done.acquire();
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  Owner() : process_(platform::process_id()) {
    std::thread([this] { serve(); }).detach();
  }

  [[noreturn]] void serve() {
    this_thread_owns = true;
    for (;;) {
      Job& job = next();
      try {
        job.work();
      } catch (...) {
        job.error = std::current_exception();
      }
      job.done.release();
    }
  }

  Job& next() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return !jobs_.empty(); });
    Job& job = *jobs_.front();
    jobs_.pop_front();
    return job;
  }

  const std::int64_t process_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job*> jobs_;
};

}  // namespace

bool is_owner() noexcept { return this_thread_owns; }

void run_on_owner(const std::function<void()>& work) {
  if (is_owner()) {
    work();
  } else {
    Owner::instance().run(work);
  }
}

}  // namespace agentkv::mlx
