#include "cpu/schedule.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace agentkv::cpu {

namespace {

// Bits of a block's positions in [low, high].
std::uint64_t bits(Pos base, Pos low, Pos high) {
  if (high < base || low > high || low >= base + kBlock) return 0;
  const int from = std::max<Pos>(low - base, 0), to = std::min<Pos>(high - base, kBlock - 1);
  return (~std::uint64_t{0} >> (kBlock - 1 - to)) & (~std::uint64_t{0} << from);
}

}  // namespace

Schedule::Schedule(const StepPlan& plan, const Sight& sight, std::int32_t rows_per_tile,
                   std::span<const unsigned char> quantized) {
  const std::int32_t n = plan.n_tokens();
  if (n == 0) return;
  constexpr Pos no_limit = std::numeric_limits<Pos>::max();
  if (plan.row_view.empty()) {
    // SingleContiguous without runs: position p lies in cell p.
    const Run all{0, 0, plan.positions.back() + 1};
    views_.push_back(add_blocks({&all, 1}, no_limit, {}, 0));
    row_views_.assign(static_cast<std::size_t>(n), 0);
  } else {
    for (std::int32_t v = 0; v < plan.n_views(); ++v) views_.push_back(add_blocks(plan.view(v), no_limit, {}, 0));
    row_views_ = plan.row_view;
  }
  if (!plan.tail_offsets.empty()) {
    tails_.resize(static_cast<std::size_t>(n));
    for (std::int32_t i = 0; i < n; ++i) {
      if (plan.tail(i).empty()) continue;
      // From the first block that is not wholly committed the row has cells of its own.
      const Pos limit = plan.row_limit[i];
      tails_[i] = add_blocks(plan.view(plan.row_view[i]), limit, plan.tail(i), (limit + 1) / kBlock);
    }
  }
  split_lists(quantized);
  positions_ = plan.positions;
  rows_.resize(static_cast<std::size_t>(n));
  std::iota(rows_.begin(), rows_.end(), 0);
  std::stable_sort(rows_.begin(), rows_.end(),
                   [&](std::int32_t a, std::int32_t b) { return row_views_[a] < row_views_[b]; });
  for (std::int32_t begin = 0; begin < n; begin += rows_per_tile) {
    add_tile(plan, sight, begin, std::min(n, begin + rows_per_tile));
  }
}

Schedule::BlockRange Schedule::add_blocks(std::span<const Run> head, Pos limit, std::span<const Run> tail,
                                          std::int32_t first) {
  BlockRange range{first, static_cast<std::int32_t>(block_lists_.size()), 0};
  CellList list;
  std::int32_t block = first;
  bool open = false;
  auto flush = [&] {
    block_lists_.push_back(open ? intern(block, list) : -1);
    open = false;
    ++block;
  };
  auto add = [&](Run run, Pos last) {
    Pos p = std::max(run.position, first * kBlock);
    const Pos end = last < run.position + run.length ? last + 1 : run.position + run.length;
    while (p < end) {
      while (block < p / kBlock) flush();
      if (!open) {
        open = true;
        list.present = 0;
        list.next = list.quantized = -1;
        list.cells.fill(-1);
      }
      const Pos base = block * kBlock, stop = std::min(end, base + kBlock);
      list.present |= bits(base, p, stop - 1);
      for (Cell cell = run.cell + (p - run.position); p < stop; ++p, ++cell) list.cells[p - base] = cell;
    }
  };
  for (const Run& run : head) add(run, limit);
  for (const Run& run : tail) add(run, std::numeric_limits<Pos>::max() - 1);
  if (open) flush();
  range.end = static_cast<std::int32_t>(block_lists_.size());
  return range;
}

std::int32_t Schedule::intern(std::int32_t block, const CellList& list) {
  const auto b = static_cast<std::size_t>(block);
  if (b >= first_list_.size()) first_list_.resize(b + 1, -1);
  for (std::int32_t i = first_list_[b]; i >= 0; i = lists_[i].next) {
    if (lists_[i].present == list.present && lists_[i].cells == list.cells) return i;
  }
  lists_.push_back(list);
  lists_.back().next = first_list_[b];
  return first_list_[b] = static_cast<std::int32_t>(lists_.size()) - 1;
}

void Schedule::split_lists(std::span<const unsigned char> quantized) {
  for (std::size_t i = 0, n = lists_.size(); i < n && !quantized.empty(); ++i) {
    CellList codes{0, -1, -1, {}};
    for (int p = 0; p < kBlock; ++p) {
      Cell& cell = lists_[i].cells[p];
      const bool is = cell >= 0 && static_cast<std::size_t>(cell) < quantized.size() &&
                      quantized[static_cast<std::size_t>(cell)] != 0;
      codes.cells[p] = std::exchange(cell, is ? -1 : cell);
      if (is) codes.present |= std::uint64_t{1} << p;
      if (!is) codes.cells[p] = -1;
    }
    if (codes.present == 0) continue;
    lists_[i].present &= ~codes.present;
    lists_[i].quantized = static_cast<std::int32_t>(lists_.size());
    lists_.push_back(codes);
    sees_quantized_ = true;
  }
}

std::int32_t Schedule::list_of(std::size_t row, std::int32_t block, bool quantized) const {
  const BlockRange* range = &views_[static_cast<std::size_t>(row_views_[row])];
  if (!tails_.empty() && tails_[row].end > tails_[row].begin && block >= tails_[row].first) range = &tails_[row];
  const std::int32_t i = range->begin + block - range->first;
  const std::int32_t list = i < range->end ? block_lists_[static_cast<std::size_t>(i)] : -1;
  return quantized && list >= 0 ? lists_[static_cast<std::size_t>(list)].quantized : list;
}

void Schedule::add_tile(const StepPlan& plan, const Sight& sight, std::int32_t begin, std::int32_t end) {
  Tile tile{begin, end, static_cast<std::int32_t>(groups_.size()), 0, static_cast<std::int32_t>(segments_.size()), 0};
  if (sees_quantized_) add_groups(plan, sight, tile, true);
  add_groups(plan, sight, tile, false);
  tile.group_end = static_cast<std::int32_t>(groups_.size());
  tile.segment_end = static_cast<std::int32_t>(segments_.size());
  max_segments_ = std::max(max_segments_, tile.segment_end - tile.segment_begin);
  tiles_.push_back(tile);
}

void Schedule::add_groups(const StepPlan& plan, const Sight& sight, const Tile& tile, bool quantized) {
  const std::int32_t begin = tile.begin, end = tile.end;
  Pos last = 0;
  for (std::int32_t i = begin; i < end; ++i) last = std::max(last, plan.positions[rows_[i]]);
  std::vector<std::int32_t> lists(static_cast<std::size_t>(end - begin));
  std::vector<std::uint64_t> visible(lists.size());
  for (std::int32_t block = 0; block <= last / kBlock; ++block) {
    const Pos base = block * kBlock;
    for (std::int32_t i = begin; i < end; ++i) {
      const auto row = static_cast<std::size_t>(rows_[i]);
      const Pos position = plan.positions[row];
      // A row with a tail has cells of its own beyond the limit, all of them visible.
      const bool tail = !tails_.empty() && tails_[row].end > tails_[row].begin;
      const Pos limit = tail || plan.row_limit.empty() ? position : plan.row_limit[row];
      std::uint64_t seen = bits(base, 0, limit);
      if (sight.chunk > 0) seen &= bits(base, position - position % sight.chunk, position);
      if (sight.window > 0) {
        seen &= bits(base, position - sight.window + 1, position) | bits(base, 0, sight.sinks - 1);
      }
      const std::int32_t list = seen != 0 ? list_of(row, block, quantized) : -1;
      lists[i - begin] = list;
      visible[i - begin] = list >= 0 ? seen & lists_[static_cast<std::size_t>(list)].present : 0;
    }
    const std::int32_t before = static_cast<std::int32_t>(groups_.size());
    for (std::size_t i = 0; i < lists.size(); ++i) {
      if (visible[i] == 0) continue;
      Group group{block, lists[i], static_cast<std::int32_t>(members_.size()), 0};
      for (std::size_t j = i; j < lists.size(); ++j) {
        if (visible[j] == 0 || lists[j] != group.cells) continue;
        members_.push_back({static_cast<std::int32_t>(j), visible[j]});
        visible[j] = 0;
      }
      group.end = static_cast<std::int32_t>(members_.size());
      groups_.push_back(group);
    }
    const std::int32_t after = static_cast<std::int32_t>(groups_.size());
    if (after == before) continue;
    constexpr int per_segment = kSegment / kBlock;
    const bool starts = static_cast<std::int32_t>(segments_.size()) == tile.segment_begin ||
                        segments_.back().quantized != quantized ||
                        groups_[segments_.back().group_begin].block / per_segment != block / per_segment;
    if (starts) {
      segments_.push_back({before, after, quantized});
    } else {
      segments_.back().group_end = after;
    }
  }
}

bool same_visibility(const StepPlan& a, const StepPlan& b) {
  return a.positions == b.positions && a.row_view == b.row_view && a.row_limit == b.row_limit && a.runs == b.runs &&
         a.view_offsets == b.view_offsets && a.tail_offsets == b.tail_offsets && a.tails == b.tails;
}

}  // namespace agentkv::cpu
