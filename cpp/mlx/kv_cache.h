// The MLX byte layer: K and V pools as MLX arrays and attention over them.
#pragma once

#include <mlx/array.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/byte_layer.h"
#include "core/cache.h"
#include "core/state_blocks.h"
#include "core/step_plan.h"
#include "mlx/attention.h"
#include "mlx/cells_view.h"
#include "mlx/convolution.h"
#include "mlx/linear_attention.h"
#include "mlx/pool.h"
#include "mlx/selective_scan.h"
#include "mlx/states.h"
#include "mlx/visible_cells.h"

namespace agentkv::mlx {

// What a layer's attention reads. To be dropped before the next step: a view that lives makes the next write a copy.
struct AttendSpec {
  int layer;
  CellsView k, v;
  Visibility visibility;
  const StepPlan* plan;
};

class KvCache final : public ByteLayer {
 public:
  // Counts at least 1; kv_dtype fp32, fp16, bf16, or int8, int4 or int8/int4 where 32 divides the widths of rows and no
  // layer has its values in its keys; what convolutions, linear attention and scans keep is float32 in each. Throws
  // InvalidTensor otherwise. Allocates nothing before the first update.
  KvCache(const CacheConfig& config, std::shared_ptr<StepPlanner> planner);
  ~KvCache() override;

  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // From any thread.
  std::string_view backend_id() const override { return "AgentKVMLX"; }
  std::size_t bytes() const override { return bytes_; }
  Cell allocated_cells() const override { return allocated_cells_; }
  void move_cells(const Cell* src, const Cell* dst, std::size_t n) override;
  std::size_t cell_bytes() const override;
  std::vector<CellArray> cell_arrays() const override;
  void read_cells(std::span<const Cell> cells, std::span<std::byte> bytes) const override;
  void write_cells(std::span<const Cell> cells, std::span<const std::byte> bytes) override;
  void discard(std::span<const Cell> cells, std::uint8_t groups) override;  // states alone
  void shrink(Cell cells) noexcept override;                                // states alone
  std::vector<CellArray> state_arrays() const override;
  bool has_state(Cell cell) const override;
  std::size_t states() const override;
  void read_states(std::span<const Cell> cells, std::span<std::byte> bytes) const override;
  void write_states(std::span<const Cell> cells, std::span<const std::byte> bytes) override;

  // The rest is called on the owner (InvalidStep elsewhere), between forwards or within one.

  // Stores this step's K [1, n_kv_heads, T, k_dim] and V [1, n_kv_heads, T, v_dim] of one layer, T == position.size(),
  // into the cells that the plan gives them; of any floating dtype, lazy or not. V is not looked at where there are
  // none beside the keys. Throws InvalidTensor before anything changes when a shape, a dtype or the layer does not fit.
  AttendSpec update_and_fetch(int layer, std::span<const std::int64_t> position, const mx::array& k,
                              const mx::array& v);
  // The same of a layer that this step has written already.
  AttendSpec fetch(int layer, std::span<const std::int64_t> position);

  // softmax(scores) V over the cells that each row sees, scores as `scoring` makes them of q K^T; lazy, [1, n_heads, T,
  // v_dim] of q's dtype. q: [1, n_heads, T, k_dim], n_heads a multiple of n_kv_heads. The cache's own window holds
  // where it is narrower than `sight`. Throws InvalidTensor.
  mx::array attend(const AttendSpec& spec, const mx::array& q, const Scoring& scoring, const Sight& sight = {});

  // Stores the inputs x [1, T, channels] of a layer that keeps them, and convolves each row's with those before it:
  // lazy, [1, T, channels] of x's dtype. Throws InvalidTensor.
  mx::array convolve(int layer, std::span<const std::int64_t> position, const mx::array& x,
                     const Convolution& convolution);

  // Linear attention with the states behind the positions before: lazy, [1, T, heads, v_dim] of v's dtype. Throws
  // InvalidTensor, and InvalidStep where a row does not see all positions before it as far as it must.
  mx::array attend_linear(int layer, std::span<const std::int64_t> position, const LinearInputs& inputs);

  // A selective scan from the states behind the positions before: lazy, [1, T, channels] of x's dtype. Throws as
  // attend_linear.
  mx::array scan(int layer, std::span<const std::int64_t> position, const ScanInputs& inputs);

  // Evaluates what was written: called at the end of every forward. Throws what the evaluation throws, after abandon().
  void settle();

  // After a forward that failed: every write that is not evaluated is taken back, so that nothing stays that hangs on
  // what failed. The cells of earlier steps are as they were.
  void abandon();

  int n_layers() const { return static_cast<int>(layers_.size()); }

 private:
  struct Layer {
    LayerShape shape;
    std::vector<std::unique_ptr<Pool>> pools;  // K, and V where there are values beside it
    std::unique_ptr<States> states;            // of a layer that keeps some

    Pool& k() const { return *pools.front(); }
    Pool& v() const { return *pools.back(); }
  };
  // Serves every layer of a step that looks as far back.
  struct KeptVisible {
    Sight sight;
    VisibleCells visible;
  };
  Layer& layer_at(int layer);
  const StepPlan& begin_write(Layer& layer, int index, std::span<const std::int64_t> position);
  static void add_state_pools(Layer& layer);
  Layer& stateful(int layer, bool scans);
  // A step of a layer that keeps states: a LinearAttention or a SelectiveScan takes them through its rows.
  template <typename Mixer>
  mx::array go_on(Layer& layer, int index, std::span<const std::int64_t> position, Mixer& mixer);
  std::size_t state_bytes() const;
  AttendSpec spec_of(int layer, const StepPlan& plan) const;
  void check_scoring(const AttendSpec& spec, const mx::array& q, const Scoring& scoring, const Sight& sight) const;
  const VisibleCells& visible_for(const StepPlan& plan, const Sight& sight);
  void reserve(Layer& layer, Cell cells);
  void count_bytes();

  Cell capacity_;
  Cell min_chunk_;
  Sight sight_;  // of every layer, at most
  std::shared_ptr<StepPlanner> planner_;
  std::vector<Layer> layers_;
  std::vector<std::uint8_t> groups_;  // of layers, beside which others have states
  StepPlan recent_plan_;              // what recent_ was made for
  std::vector<Cell> recent_;          // BlockRows::recent
  StepPlan visible_plan_;             // what visible_ were made for
  std::vector<KeptVisible> visible_;
  std::atomic<std::size_t> bytes_ = 0;
  std::atomic<Cell> allocated_cells_ = 0;
};

}  // namespace agentkv::mlx
