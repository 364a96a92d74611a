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
#include "core/step_plan.h"
#include "mlx/attention.h"
#include "mlx/cells_view.h"
#include "mlx/pool.h"
#include "mlx/visible_cells.h"

namespace agentkv::mlx {

// What a layer's attention reads. To be dropped before the next step: a view that lives makes the next write a copy.
struct AttendSpec {
  CellsView k, v;
  Visibility visibility;
  const StepPlan* plan;
};

class KvCache final : public ByteLayer {
 public:
  // n_layers, n_kv_heads, head_dim, capacity and min_chunk at least 1; kv_dtype fp32, fp16, bf16, or int8 or int4 where
  // 32 divides head_dim. Throws InvalidTensor otherwise. Allocates nothing before the first update.
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

  // The rest is called on the owner (InvalidStep elsewhere), between forwards or within one.

  // Stores this step's K and V of one layer into the cells that the plan gives them: [1, n_kv_heads, T, head_dim] with
  // T == position.size(), of any floating dtype, lazy or not. Throws InvalidTensor before anything changes when a
  // shape, a dtype or the layer does not fit.
  AttendSpec update_and_fetch(int layer, std::span<const std::int64_t> position, const mx::array& k,
                              const mx::array& v);

  // softmax(scale * q K^T) V over the cells that each row sees, lazy, of q's shape and dtype. q: [1, n_heads, T,
  // head_dim], n_heads a multiple of n_kv_heads. window > 0 hides positions <= position - window, except those below
  // `sinks`.
  mx::array attend(const AttendSpec& spec, const mx::array& q, float scale, Pos window, Pos sinks = 0);

  // Evaluates what was written: called at the end of every forward. Throws what the evaluation throws, after abandon().
  void settle();

  // After a forward that failed: every write that is not evaluated is taken back, so that nothing stays that hangs on
  // what failed. The cells of earlier steps are as they were.
  void abandon();

  int n_layers() const { return static_cast<int>(layers_.size()); }

 private:
  struct Layer {
    std::unique_ptr<Pool> k, v;
  };
  // Serves every layer of a step that has the same window.
  struct KeptVisible {
    Pos window, sinks;
    VisibleCells visible;
  };
  const VisibleCells& visible_for(const StepPlan& plan, Pos window, Pos sinks);
  void reserve(Layer& layer, Cell cells);
  void count_bytes();

  int n_kv_heads_;
  int head_dim_;
  Cell capacity_;
  Cell min_chunk_;
  Sight sight_;  // of every layer, at most
  std::shared_ptr<StepPlanner> planner_;
  std::vector<Layer> layers_;
  StepPlan visible_plan_;  // what visible_ were made for
  std::vector<KeptVisible> visible_;
  std::atomic<std::size_t> bytes_ = 0;
  std::atomic<Cell> allocated_cells_ = 0;
};

}  // namespace agentkv::mlx
