// The CPU byte layer: K and V pools in host memory and attention over them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/byte_layer.h"
#include "core/cache.h"
#include "core/step_plan.h"
#include "cpu/attention.h"
#include "cpu/heads_view.h"
#include "cpu/pool.h"
#include "cpu/schedule.h"

namespace agentkv::cpu {

// The input of a layer's attention: the two pools and who sees which cells. Valid until the next update of the layer or
// the end of the step.
struct AttendSpec {
  int layer = 0;
  PoolView k, v;
  PoolView k_codes, v_codes;  // of the cells that are quantised, if any are
  const StepPlan* plan = nullptr;
};

// Not thread-safe: one thread calls it, and it spreads its own work over the ParallelFor it was given.
class KvCache final : public ByteLayer {
 public:
  // n_layers, n_kv_heads, capacity and min_chunk at least 1; head_dim a multiple of 8 up to 256; kv_dtype fp32, fp16,
  // bf16, int8 or int4. Throws InvalidTensor otherwise. Reserves addresses for the capacity, and takes memory as cells
  // are first written.
  KvCache(const CacheConfig& config, std::shared_ptr<StepPlanner> planner, ParallelFor parallel_for);

  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  std::string_view backend_id() const override { return "AgentKVCPU"; }
  std::size_t bytes() const override;
  Cell allocated_cells() const override { return allocated_; }
  void move_cells(const Cell* src, const Cell* dst, std::size_t n) override;
  // Into int8, beside the pools of floats, whose pages are given back where all of their cells went.
  void to_quantized(std::span<const Cell> cells) override;
  // Pages all of whose rows went are given back.
  void discard(std::span<const Cell> cells, std::uint8_t groups) override;
  void shrink(Cell cells) noexcept override;
  std::size_t cell_bytes() const override;
  std::vector<CellArray> cell_arrays() const override;
  void read_cells(std::span<const Cell> cells, std::span<std::byte> bytes) const override;
  void write_cells(std::span<const Cell> cells, std::span<const std::byte> bytes) override;
  Cell map_cells(Cell first, Cell count, const FileLanes& file) override;
  std::size_t mapped_bytes() const override;

  // Stores this step's K and V of one layer, [n_kv_heads, T, head_dim] with T == position.size(), into the cells that
  // the plan gives them. Throws InvalidTensor before anything changes when a shape or the layer does not fit.
  AttendSpec update_and_fetch(int layer, std::span<const std::int64_t> position, HeadsView k, HeadsView v);

  // out = softmax(scale * q K^T) V over the cells that each row sees; q and out are [n_heads, T, head_dim], n_heads a
  // multiple of n_kv_heads. window > 0 hides positions <= position - window, except those below `sinks`; the cache's
  // own window holds where it is narrower. Each row's bits depend on its own q and on the K and V at the positions it
  // sees, on nothing else.
  void attend(const AttendSpec& spec, HeadsView q, float scale, Pos window, MutableHeadsView out, Pos sinks = 0);

  int n_layers() const { return static_cast<int>(layers_.size()); }

 private:
  struct Layer {
    Pool k, v;
  };
  // A schedule serves every layer of a step that has the same window and as many query heads.
  struct KeptSchedule {
    Pos window, sinks;
    int group;
    Schedule schedule;
  };
  // Memory for `cells` cells in every layer, or in none. Throws CacheFull, OutOfMemory.
  void grow(Cell cells);
  void count_cells();
  bool is_quantized(Cell cell) const { return !codes_.empty() && quantized_[static_cast<std::size_t>(cell)] != 0; }
  // Has the cell rows in this layer, whether of floats or of codes?
  bool has_rows(std::size_t layer, Cell cell) const {
    return lacks_.empty() || lacks_[static_cast<std::size_t>(cell)] <= groups_[layer];
  }
  void set_quantized(std::span<const Cell> cells, bool value);
  void set_whole(std::span<const Cell> cells);
  std::vector<Layer> make_layers(int n_layers, KvDtype dtype) const;
  void discard_rows(std::span<const Cell> cells);
  template <class Unused>
  void discard_unused(Layer& layer, std::span<const Cell> cells, Unused&& unused);
  void check_file(Cell first, Cell count, const FileLanes& file) const;
  const Schedule& schedule_for(const StepPlan& plan, Pos window, Pos sinks, int group);

  int n_kv_heads_;
  int head_dim_;
  KvDtype dtype_;
  Cell capacity_;
  Cell min_chunk_;
  Cell allocated_ = 0;  // in every layer
  Sight sight_;         // of every layer, at most
  std::shared_ptr<StepPlanner> planner_;
  ParallelFor parallel_for_;
  std::vector<Layer> layers_;
  std::vector<Layer> codes_;              // of quantised cells, one for each layer; empty until there are some
  std::vector<unsigned char> quantized_;  // [capacity] whether a cell is; as `codes_`
  std::vector<std::uint8_t> groups_;      // [n_layers] the group of each layer
  std::vector<std::uint8_t> lacks_;  // [capacity] of how many groups a cell has no rows; empty until there are some
  StepPlan scheduled_;               // what schedules_ were made for
  std::vector<KeptSchedule> schedules_;
  AttentionScratch scratch_;
};

}  // namespace agentkv::cpu
