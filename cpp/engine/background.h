// A thread that does one thing at a time beside its owner.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace agentkv {

// The thread begins with the first task. Used by one owner.
class Background {
 public:
  Background() = default;
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  void start(std::function<void()> task);  // must not throw; the one before was waited for
  void wait();                             // until the last task is done

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace agentkv
