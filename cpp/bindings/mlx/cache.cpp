// The MLX byte layer by itself, over NumPy arrays: what tests and benchmarks drive.
#include <mlx/array.h>
#include <mlx/memory.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/message.h"
#include "core/seq_cells.h"
#include "core/tree_cells.h"
#include "mlx/kv_cache.h"
#include "mlx/owner.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace agentkv::mlx {
namespace {

using Positions = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Heads = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using OutHeads = nb::ndarray<nb::numpy, float, nb::ndim<3>>;

mx::array with_batch(const Heads& a) {
  return mx::array(a.data(),
                   {1, static_cast<int>(a.shape(0)), static_cast<int>(a.shape(1)), static_cast<int>(a.shape(2))},
                   mx::float32);
}

template <class Cells>
std::shared_ptr<KvCache> make_cache(std::shared_ptr<Cells> cells, int n_layers, int n_kv_heads, int head_dim,
                                    const std::string& kv_dtype, Cell min_chunk) {
  CacheConfig config;
  config.n_layers = n_layers;
  config.n_kv_heads = n_kv_heads;
  config.head_dim = head_dim;
  config.capacity = cells->capacity();
  config.min_chunk = min_chunk;
  config.kv_dtype = kv_dtype.c_str();
  config.max_sequences = cells->max_sequences();
  return std::make_shared<KvCache>(config, std::move(cells));
}

// Nothing of it reads the pools any more when it returns.
mx::array attended(KvCache& cache, int layer, const Positions& positions, const Heads& q, const Heads& k,
                   const Heads& v, float scale, Pos window, Pos sinks) {
  const auto spec = cache.update_and_fetch(layer, {positions.data(), positions.size()}, with_batch(k), with_batch(v));
  mx::array out = mx::contiguous(cache.attend(spec, with_batch(q), scale, window, sinks));
  out.eval();
  return out;
}

OutHeads update_and_attend(KvCache& cache, int layer, const Positions& positions, const Heads& q, const Heads& k,
                           const Heads& v, float scale, Pos window, Pos sinks) {
  auto* out = new std::vector<float>(q.size());
  nb::capsule owner(out, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  {
    nb::gil_scoped_release release;
    on_owner([&] {
      try {
        const mx::array result = attended(cache, layer, positions, q, k, v, scale, window, sinks);
        std::copy_n(result.data<float>(), out->size(), out->data());
      } catch (...) {
        cache.abandon();
        throw;
      }
      cache.settle();
    });
  }
  const std::size_t shape[] = {q.shape(0), q.shape(1), q.shape(2)};
  return {out->data(), 3, shape, owner};
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
    const auto heads = static_cast<std::size_t>(view.values.shape(1)),
               len = static_cast<std::size_t>(view.values.shape(2));
    auto* out = new std::vector<float>;
    nb::capsule owner(out, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
    on_owner([&] {
      mx::array rows = mx::contiguous(view.dense(mx::float32));
      rows.eval();
      out->assign(rows.data<float>(), rows.data<float>() + rows.size());
    });
    const std::size_t shape[] = {heads, len, out->size() / (heads * len)};
    return {out->data(), 3, shape, owner};
  }

  std::optional<AttendSpec> spec_;
};

void move_cells(KvCache& cache, const std::vector<Cell>& src, const std::vector<Cell>& dst) {
  if (src.size() != dst.size()) {
    throw InvalidRange(error_text(src.size(), " source cells for ", dst.size(), " destinations"));
  }
  nb::gil_scoped_release release;
  cache.move_cells(src.data(), dst.data(), src.size());
}

}  // namespace
}  // namespace agentkv::mlx

void bind_mlx_cache(nb::module_& m) {
  using namespace agentkv;
  using namespace agentkv::mlx;
  nb::class_<LiveView>(m, "LiveView", "What attention reads of one layer. Writes copy the pools as long as it lives.")
      .def_prop_ro("k", &LiveView::k, nb::rv_policy::move,
                   "A copy of K as kept, float32 [n_kv_heads, cells read, head_dim].")
      .def_prop_ro("v", &LiveView::v, nb::rv_policy::move,
                   "A copy of V as kept, float32 [n_kv_heads, cells read, head_dim].");
  nb::class_<KvCache>(m, "MlxCache", "K and V pools as MLX arrays, and attention over the plans of a bookkeeping.")
      .def(nb::new_(&make_cache<SeqCells>), "cells"_a, "n_layers"_a, "n_kv_heads"_a, "head_dim"_a,
           "kv_dtype"_a = "fp16", "min_chunk"_a = 256,
           "kv_dtype: \"fp32\", \"fp16\", \"bf16\", or \"int8\" or \"int4\" where 32 divides head_dim. Raises "
           "InvalidTensor.")
      .def(nb::new_(&make_cache<TreeCells>), "cells"_a, "n_layers"_a, "n_kv_heads"_a, "head_dim"_a,
           "kv_dtype"_a = "fp16", "min_chunk"_a = 256)
      .def("update_and_attend", &update_and_attend, "layer"_a, "positions"_a, "q"_a, "k"_a, "v"_a, "scale"_a,
           "window"_a = 0, "sinks"_a = 0,
           "Stores K and V [n_kv_heads, T, head_dim] of the open step's rows and returns attention of q [n_heads, T, "
           "head_dim] over what each row sees, float32 [n_heads, T, head_dim]. positions: int64 [T]. window > 0 hides "
           "positions <= the row's - window, except the first `sinks`. Raises InvalidTensor, InvalidStep, CacheFull.")
      .def(
          "update",
          [](KvCache& cache, int layer, const Positions& positions, const Heads& k, const Heads& v) {
            nb::gil_scoped_release release;
            return std::make_unique<LiveView>(cache, layer, positions, k, v);
          },
          "layer"_a, "positions"_a, "k"_a, "v"_a,
          "Stores K and V as update_and_attend does, and returns what attention would read.")
      .def("move_cells", &move_cells, "src"_a, "dst"_a,
           "Copies cell src[i] to dst[i] in every layer, as if all were read first. Raises InvalidRange.")
      .def_prop_ro("bytes", &KvCache::bytes, "K and V bytes allocated now, all layers.")
      .def_prop_ro("allocated_cells", &KvCache::allocated_cells);
  m.def("active_memory", &mx::get_active_memory, "Bytes that MLX's arrays take now, in the whole process.");
  m.def("peak_memory", &mx::get_peak_memory, "The most bytes that they took since reset_peak_memory.");
  m.def("reset_peak_memory", &mx::reset_peak_memory, "Starts peak_memory afresh.");
}
