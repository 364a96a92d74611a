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
#include "cpu/convolution.h"
#include "cpu/heads_view.h"
#include "cpu/linear_attention.h"
#include "cpu/pool.h"
#include "cpu/schedule.h"
#include "cpu/selective_scan.h"
#include "cpu/states.h"

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
  // Counts at least 1; widths of keys and values multiples of 8 up to 2048; kv_dtype as parse_kv_dtype() knows them,
  // and where layers have their values in their keys one of floats; a state of at most 2^28 numbers. Throws
  // InvalidTensor otherwise. Reserves addresses for the capacity, and takes memory as cells are first written.
  KvCache(const CacheConfig& config, std::shared_ptr<StepPlanner> planner, ParallelFor parallel_for);

  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  std::string_view backend_id() const override { return "AgentKVCPU"; }
  std::size_t bytes() const override;
  Cell allocated_cells() const override { return allocated_; }
  void move_cells(const Cell* src, const Cell* dst, std::size_t n) override;
  // Into int8, beside the pools of floats, whose pages are given back where all of their cells went. Throws
  // InvalidRange also where layers have their values in their keys.
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
  std::vector<CellArray> state_arrays() const override;
  bool has_state(Cell cell) const override;
  std::size_t states() const override;
  void read_states(std::span<const Cell> cells, std::span<std::byte> bytes) const override;
  void write_states(std::span<const Cell> cells, std::span<const std::byte> bytes) override;

  // Stores this step's K [n_kv_heads, T, k_dim] and V [n_kv_heads, T, v_dim] of one layer, T == position.size(), into
  // the cells that the plan gives them; V is not looked at where values are in keys. Throws InvalidTensor before
  // anything changes when a shape or the layer does not fit.
  AttendSpec update_and_fetch(int layer, std::span<const std::int64_t> position, HeadsView k, HeadsView v);
  // The same of a layer that this step has written already.
  AttendSpec fetch(int layer, std::span<const std::int64_t> position);

  // out = softmax(scores) V over the cells that each row sees, scores as `scoring` makes them of q K^T; q is
  // [n_heads, T, k_dim] and out [n_heads, T, v_dim], n_heads a multiple of n_kv_heads. The cache's own window holds
  // where it is narrower than `sight`. Each row's bits depend on its own q and on the K and V at the positions it sees,
  // on nothing else. Throws InvalidTensor.
  void attend(const AttendSpec& spec, HeadsView q, const Scoring& scoring, const Sight& sight, MutableHeadsView out);

  // out [n_kv_heads, T, k_dim]: the convolution of what the layer keeps as keys; such a layer has its values in its
  // keys. Throws InvalidTensor.
  void convolve(const AttendSpec& spec, const Convolution& convolution, MutableHeadsView out);

  // Linear attention of a layer of that kind; see linear_attention.h. Throws InvalidTensor for shapes that do not fit,
  // and what that throws; before anything changes but the memory for its rows.
  void attend_linear(int layer, std::span<const std::int64_t> position, const LinearAttentionArgs& args);
  // The same of a selective scan.
  void scan(int layer, std::span<const std::int64_t> position, const ScanArgs& args);

  int n_layers() const { return static_cast<int>(layers_.size()); }

 private:
  struct Layer {
    LayerShape shape;
    std::vector<Pool> pools;         // K, and V unless it is in K
    std::unique_ptr<States> states;  // of layers that have some

    Pool& k() { return pools.front(); }
    Pool& v() { return pools.back(); }
    const Pool& k() const { return pools.front(); }
    const Pool& v() const { return pools.back(); }
    Cell cells() const;  // that have memory
  };
  // A schedule serves every layer of a step that looks as far back and has as many query heads for one of K.
  struct KeptSchedule {
    Sight sight;
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
  std::vector<Layer> make_layers(std::span<const LayerShape> shapes, KvDtypes dtypes) const;
  AttendSpec spec_of(int layer, const StepPlan& plan) const;
  bool only_keys_and_values() const;
  // Memory for the step's cells, which hold nothing from now on.
  const StepPlan& begin_write(Layer& layer, int index, std::span<const std::int64_t> position);
  // The same, of a layer that keeps states.
  BlockRows begin_blocks(Layer& layer, int index, std::span<const std::int64_t> position);
  Layer& stateful(int layer, std::initializer_list<Kept> kept);
  std::size_t state_bytes() const;  // of one cell, all layers
  void discard_rows(std::span<const Cell> cells);
  template <class Unused>
  void discard_unused(Layer& layer, std::span<const Cell> cells, Unused&& unused);
  void check_file(Cell first, Cell count, const FileLanes& file) const;
  const Schedule& schedule_for(const StepPlan& plan, const Sight& sight, int group);

  KvDtypes dtypes_;
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
  std::vector<Cell> recent_;         // BlockRows::recent
  StepPlan recent_plan_;             // what it was made for
  StepPlan scheduled_;               // what schedules_ were made for
  std::vector<KeptSchedule> schedules_;
  AttentionScratch scratch_;
};

}  // namespace agentkv::cpu
