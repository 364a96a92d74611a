// The one thread pool of the process: XNNPACK's linears and our own kernels share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace agentkv {

// Number of threads of the pool, at least 1.
std::size_t get_threads();

// Replaces the pool by one of n threads (1 <= n <= 1024), once the forwards that run now are done. Throws Error.
void set_threads(std::size_t n);

// Counts the pools that came after the first. XNNPACK keeps the pool that a method was loaded under, so a method of an
// older generation must be loaded again before it runs. Constant while a ForwardGate is held.
std::uint64_t pool_generation();

// Runs task(0) ... task(n_tasks - 1) on the pool: each thread takes the next task when it is done with its last, so a
// thread that another process slows down does not hold up the rest. Returns when all are done. The first exception
// that a task throws is rethrown here; the tasks not begun by then are dropped.
void parallel_for(std::size_t n_tasks, const std::function<void(std::size_t)>& task);

// While it lives, what its thread loads or runs uses that thread alone: a program that takes some ten microseconds
// loses more by waking others than it gains.
class OneThread {
 public:
  explicit OneThread(bool wanted);
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const bool before_;
};

// Held while a program executes, so that set_threads does not take the pool away under it. Forwards of several programs
// hold it together.
class ForwardGate {
 public:
  ForwardGate();
  ~ForwardGate();
  ForwardGate(const ForwardGate&) = delete;
  ForwardGate& operator=(const ForwardGate&) = delete;
};

}  // namespace agentkv
