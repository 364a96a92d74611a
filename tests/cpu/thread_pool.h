// A ParallelFor for tests and benchmarks: a few threads that take tasks one at a time and sleep in between.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace agentkv::cpu::testing {

class ThreadPool {
 public:
  explicit ThreadPool(std::size_t threads) {
    for (std::size_t i = 1; i < threads; ++i) threads_.emplace_back([this] { serve(); });
  }
  ~ThreadPool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(std::size_t n, const std::function<void(std::size_t)>& task) {
    {
      const std::lock_guard lock(mutex_);
      task_ = &task;
      n_ = n;
      next_ = 0;
      ++round_;
    }
    wake_.notify_all();
    for (std::size_t i; (i = next_.fetch_add(1)) < n;) task(i);
    std::unique_lock lock(mutex_);
    task_ = nullptr;
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (std::size_t seen = 0;;) {
      wake_.wait(lock, [&] { return stop_ || (round_ != seen && task_ != nullptr); });
      if (stop_) return;
      seen = round_;
      const auto* task = task_;
      const std::size_t n = n_;
      ++busy_;
      lock.unlock();
      for (std::size_t i; (i = next_.fetch_add(1)) < n;) (*task)(i);
      lock.lock();
      if (--busy_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(std::size_t)>* task_ = nullptr;
  std::size_t n_ = 0, round_ = 0, busy_ = 0;
  std::atomic<std::size_t> next_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace agentkv::cpu::testing
