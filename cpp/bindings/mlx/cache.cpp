// The MLX byte layer by itself, over NumPy arrays: what tests and benchmarks drive.
#include <mlx/array.h>
#include <mlx/memory.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/byte_layer.h"
#include "mlx/kv_cache.h"
#include "mlx/owner.h"

namespace agentkv::mlx {
namespace {

mx::array with_batch(const Heads& a) {
  return mx::array(a.data(),
                   {1, static_cast<int>(a.shape(0)), static_cast<int>(a.shape(1)), static_cast<int>(a.shape(2))},
                   mx::float32);
}

mx::array attended(KvCache& cache, int layer, const Positions& positions, const Heads& q, const Heads& k,
                   const Heads& v, float scale, Pos window, Pos sinks) {
  const auto spec = cache.update_and_fetch(layer, {positions.data(), positions.size()}, with_batch(k), with_batch(v));
  mx::array out =
      mx::contiguous(cache.attend(spec, with_batch(q), {.scale = scale}, {.window = window, .sinks = sinks}));
  out.eval();
  return out;
}

OutHeads update_and_attend(KvCache& cache, int layer, const Positions& positions, const Heads& q, const Heads& k,
                           const Heads& v, float scale, Pos window, Pos sinks) {
  return filled(q.shape(0), q.shape(1), q.shape(2), [&](float* out) {
    on_owner([&] {
      try {
        const mx::array result = attended(cache, layer, positions, q, k, v, scale, window, sinks);
        std::copy_n(result.data<float>(), result.size(), out);
      } catch (...) {
        cache.abandon();
        throw;
      }
      cache.settle();
    });
  });
}

// What attention reads of one layer, kept alive: the pools have another holder as long as it lives.
class LiveView {
 public:
  LiveView(KvCache& cache, int layer, const Positions& positions, const Heads& k, const Heads& v) {
    on_owner([&] {
      spec_ = cache.update_and_fetch(layer, {positions.data(), positions.size()}, with_batch(k), with_batch(v));
      cache.settle();
      mx::eval(spec_->k.values, spec_->v.values);
    });
  }
  ~LiveView() {
    try {
      on_owner([this] { spec_.reset(); });
    } catch (const Error&) {
      new auto(std::move(spec_));  // in a forked child there is no thread to free it on
    }
  }
  LiveView(const LiveView&) = delete;
  LiveView& operator=(const LiveView&) = delete;

  OutHeads k() const { return copied(spec_->k); }
  OutHeads v() const { return copied(spec_->v); }

 private:
  static OutHeads copied(const CellsView& view) {
    const auto size = [](int n) { return static_cast<std::size_t>(n); };
    const int dim = view.affine ? view.affine->scales.shape(3) * view.affine->group_size : view.values.shape(3);
    return filled(size(view.values.shape(1)), size(view.values.shape(2)), size(dim), [&](float* out) {
      on_owner([&] {
        mx::array rows = mx::contiguous(view.dense(mx::float32));
        rows.eval();
        std::copy_n(rows.data<float>(), rows.size(), out);
      });
    });
  }

  std::optional<AttendSpec> spec_;
};

}  // namespace
}  // namespace agentkv::mlx

void bind_mlx_cache(nanobind::module_& m) {
  using namespace agentkv;
  using namespace agentkv::mlx;
  using namespace nb::literals;
  nb::class_<LiveView>(m, "LiveView", "What attention reads of one layer. Writes copy the pools as long as it lives.")
      .def_prop_ro("k", &LiveView::k, nb::rv_policy::move,
                   "A copy of K as kept, float32 [n_kv_heads, cells read, head_dim].")
      .def_prop_ro("v", &LiveView::v, nb::rv_policy::move,
                   "A copy of V as kept, float32 [n_kv_heads, cells read, head_dim].");
  bind_byte_layer<KvCache>(
      m, "MlxCache", "K and V pools as MLX arrays, and attention over the plans of a bookkeeping.",
      "kv_dtype: \"fp32\", \"fp16\", \"bf16\", or \"int8\", \"int4\" or \"int8/int4\" where 32 divides head_dim. "
      "Raises InvalidTensor.",
      &make_layer<KvCache>, &update_and_attend)
      .def(
          "update",
          [](KvCache& cache, int layer, const Positions& positions, const Heads& k, const Heads& v) {
            nb::gil_scoped_release release;
            return std::make_unique<LiveView>(cache, layer, positions, k, v);
          },
          "layer"_a, "positions"_a, "k"_a, "v"_a,
          "Stores K and V as update_and_attend does, and returns what attention would read.");
  m.def("active_memory", &mx::get_active_memory, "Bytes that MLX's arrays take now, in the whole process.");
  m.def("peak_memory", &mx::get_peak_memory, "The most bytes that they took since reset_peak_memory.");
  m.def("reset_peak_memory", &mx::reset_peak_memory, "Starts peak_memory afresh.");
}
