// The work of one step's attention, cut into blocks of positions: which rows share which cells, and which positions
// each of them sees.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/byte_layer.h"
#include "core/step_plan.h"
#include "cpu/kernels/table.h"

namespace agentkv::cpu {

// Built once per step and sight, used by every layer. Rows are put into tiles (one tile is one task's rows); within a
// tile and a block, rows whose 64 positions lie in the same cells form a group, whatever sequences they belong to.
class Schedule {
 public:
  struct Member {
    std::int32_t slot;      // row within the tile
    std::uint64_t visible;  // bit p: the row sees position p of the block; not 0
  };
  struct Group {
    std::int32_t block;
    std::int32_t cells;       // index for cells()
    std::int32_t begin, end;  // members
  };
  struct Tile {
    std::int32_t begin, end;                  // rows
    std::int32_t group_begin, group_end;      // by ascending block
    std::int32_t segment_begin, segment_end;  // into segments()
  };
  // Groups of one tile that belong to one segment of positions, and whose cells are all kept in one way.
  struct Segment {
    std::int32_t group_begin, group_end;
    bool quantized;
  };

  // quantized[cell] != 0: that cell is kept as codes, beside a pool of floats. No cell beyond its end is. What a tile
  // sees of such cells comes first.
  Schedule(const StepPlan& plan, const Sight& sight, std::int32_t rows_per_tile,
           std::span<const unsigned char> quantized = {});

  std::span<const Tile> tiles() const { return tiles_; }
  std::span<const Segment> segments() const { return segments_; }
  std::span<const Group> groups() const { return groups_; }
  std::span<const Member> members(const Group& group) const {
    return {members_.data() + group.begin, members_.data() + group.end};
  }
  // The plan's row in a tile's slot.
  std::int32_t row(const Tile& tile, std::int32_t slot) const {
    return rows_[static_cast<std::size_t>(tile.begin + slot)];
  }
  Pos position(const Tile& tile, std::int32_t slot) const {
    return positions_[static_cast<std::size_t>(row(tile, slot))];
  }
  const Cell* cells(std::int32_t list) const { return lists_[static_cast<std::size_t>(list)].cells.data(); }
  // The most segments that one tile has.
  std::int32_t max_segments() const { return max_segments_; }
  bool sees_quantized() const { return sees_quantized_; }

 private:
  struct CellList {
    std::uint64_t present;
    std::int32_t next;       // the next list of the same block, -1 at the end
    std::int32_t quantized;  // the list of its quantised cells, which are not in this one then; -1 for none
    std::array<Cell, kBlock> cells;
  };
  // The cell lists of one row or one view from block `first` on; -1 where no position has a cell.
  struct BlockRange {
    std::int32_t first = 0, begin = 0, end = 0;  // into block_lists_
  };

  BlockRange add_blocks(std::span<const Run> head, Pos limit, std::span<const Run> tail, std::int32_t first);
  std::int32_t intern(std::int32_t block, const CellList& list);
  void split_lists(std::span<const unsigned char> quantized);
  std::int32_t list_of(std::size_t row, std::int32_t block, bool quantized) const;
  void add_tile(const StepPlan& plan, const Sight& sight, std::int32_t begin, std::int32_t end);
  void add_groups(const StepPlan& plan, const Sight& sight, const Tile& tile, bool quantized);

  std::vector<CellList> lists_;
  std::vector<std::int32_t> first_list_;  // by block
  std::vector<std::int32_t> block_lists_;
  std::vector<BlockRange> views_;
  std::vector<BlockRange> tails_;  // by row of the plan; empty without tails
  std::vector<std::int32_t> row_views_;
  std::vector<Pos> positions_;      // by row of the plan
  std::vector<std::int32_t> rows_;  // rows of the plan, those of one view adjacent
  std::vector<Tile> tiles_;
  std::vector<Segment> segments_;
  std::vector<Group> groups_;
  std::vector<Member> members_;
  std::int32_t max_segments_ = 0;
  bool sees_quantized_ = false;
};

// Whether two plans show the same rows the same cells.
bool same_visibility(const StepPlan& a, const StepPlan& b);

}  // namespace agentkv::cpu
