// The one thread that MLX arrays live on.
#pragma once

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

namespace agentkv::mlx {

// Whether the caller is that thread.
bool is_owner() noexcept;

// Runs `work` on the owner and returns when it is done; rethrows what it throws. On the owner itself it runs in place.
// Throws ForwardFailed in a process that was forked after the owner had started: MLX did not come along.
void run_on_owner(const std::function<void()>& work);

// The same for a call with a result. MLX streams are per thread, and a lazy array that is evaluated on another thread
// fails: arrays are made, evaluated and destroyed here, and none that is lazy may be returned.
template <class F>
auto on_owner(F&& f) -> std::invoke_result_t<F&> {
  using Result = std::invoke_result_t<F&>;
  if constexpr (std::is_void_v<Result>) {
    run_on_owner([&f] { f(); });
  } else {
    std::optional<Result> result;
    run_on_owner([&f, &result] { result.emplace(f()); });
    return std::move(*result);
  }
}

}  // namespace agentkv::mlx
