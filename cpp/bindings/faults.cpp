// A test aid: caches whose forwards fail in the middle of the model, as a kernel or an allocation would.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <cstdint>
#include <memory>
#include <string>

#include "core/cache_builders.h"
#include "core/cells.h"
#include "core/errors.h"
#include "core/message.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace agentkv {
namespace {

// Armed for one failure at a time; a forward that failed disarms it.
class FailingCells final : public Cells {
 public:
  using Cells::Cells;

  void fail_at(int layer, std::int64_t after_forwards) {
    if (layer < 0 || after_forwards < 0) {
      throw InvalidRange(
          error_text("fail_at: layer ", layer, " after ", after_forwards, " forwards; neither may be negative"));
    }
    layer_ = layer;
    forwards_left_ = after_forwards;
    armed_ = true;
  }

  void begin_step(std::span<const SeqId> seq_ids) override {
    Cells::begin_step(seq_ids);
    fails_now_ = armed_ && forwards_left_-- <= 0;
  }

  const StepPlan& plan(std::span<const std::int64_t> position, int layer) override {
    if (fails_now_ && layer == layer_) {
      armed_ = false;
      throw InvalidTensor(error_text("injected failure at layer ", layer));
    }
    return Cells::plan(position, layer);
  }

 private:
  bool armed_ = false;
  bool fails_now_ = false;
  int layer_ = 0;
  std::int64_t forwards_left_ = 0;
};

PolicyMaker maker(bool failing) {
  return [failing](const CacheConfig& config) -> std::shared_ptr<Bookkeeping> {
    if (failing) return std::make_shared<FailingCells>(config.capacity, config.max_sequences);
    return std::make_shared<Cells>(config.capacity, config.max_sequences);
  };
}

void fail_at(TreeSeqCache& cache, int layer, std::int64_t after_forwards) {
  auto* cells = dynamic_cast<FailingCells*>(&cache);
  if (cells == nullptr) throw InvalidStep("fail_at needs a cache that was made while failing_caches was on");
  cells->fail_at(layer, after_forwards);
}

}  // namespace
}  // namespace agentkv

void bind_faults(nb::module_& m) {
  using namespace agentkv;
  m.def(
      "failing_caches", [](bool on) { CacheBuilderRegistry::instance().add_policy("full", maker(on)); }, "on"_a,
      "A test aid: caches made from now on are such that fail_at works on, or no longer.");
  m.def("fail_at", &fail_at, "cache"_a, "layer"_a, "after_forwards"_a = 0,
        "A test aid: the forward after the next `after_forwards` ones fails before `layer` is written. Once. Raises "
        "InvalidStep for a cache made without failing_caches, InvalidRange.");
}
