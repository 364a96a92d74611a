#include "core/cells.h"

#include <algorithm>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

Cells::Cells(Cell capacity, SeqId max_sequences)
    : table_(capacity, max_sequences), rows_(max_sequences), frontiers_(static_cast<std::size_t>(max_sequences)) {}

void Cells::set_layer(std::weak_ptr<ByteLayer> layer) {
  layer_ = layer;
  mover_ = [layer = std::move(layer)](std::span<const Cell> src, std::span<const Cell> dst) {
    const auto held = layer.lock();
    if (!held) return;
    std::vector<Cell> from, to;  // what was never written has no bytes to move
    for (std::size_t i = 0; i < src.size(); ++i) {
      if (src[i] >= held->allocated_cells()) continue;
      from.push_back(src[i]);
      to.push_back(dst[i]);
    }
    held->move_cells(from.data(), to.data(), from.size());
  };
}

std::int32_t Cells::frontier_size(SeqId seq) const {
  table_.check_id(seq);
  return frontier(seq).size();
}

SeqId Cells::live_sequences() const {
  SeqId live = table_.live_sequences();
  for (SeqId seq = 0; seq < max_sequences(); ++seq) live += frontier(seq).live() > 0 && table_.length(seq) == 0;
  return live;
}

void Cells::drop_frontier(SeqId seq) noexcept {
  for (const Cell cell : frontier(seq).cells()) table_.release(cell);
  frontier(seq).clear();
}

void Cells::clear() {
  step_.check_closed("clear");
  kept_.clear();
  table_.clear();
  for (Frontier& frontier : frontiers_) frontier.clear();
}

void Cells::check_no_frontier(const char* verb, SeqId dst) const {
  if (const std::int32_t nodes = frontier_size(dst); nodes > 0) {
    throw InvalidTree(
        error_text(verb, " into sequence ", dst, ", which has a frontier of ", nodes, " nodes; commit it first"));
  }
}

void Cells::seq_cp(SeqId src, SeqId dst, Pos p0, Pos p1) {
  step_.check_closed("seq_cp");
  check_no_frontier("seq_cp", dst);
  table_.copy(src, dst, p0, p1);
}

void Cells::seq_rm(SeqId seq, Pos p0, Pos p1) {
  step_.check_closed("seq_rm");
  const Pos length = table_.length(seq);
  if (length == 0 && frontier_size(seq) > 0 && p0 == 0 && p1 <= 0) {
    drop_frontier(seq);
    return;
  }
  table_.remove(seq, p0, p1);
  keep_to_bound();
  if (table_.length(seq) < length) drop_frontier(seq);
}

void Cells::seq_forget(SeqId seq, Pos p0, Pos p1) {
  step_.check_closed("seq_forget");
  table_.forget("seq_forget", seq, p0, p1);
  keep_to_bound();
}

void Cells::seq_keep(SeqId seq) {
  step_.check_closed("seq_keep");
  table_.keep(seq);
  for (SeqId other = 0; other < max_sequences(); ++other) {
    if (other != seq) drop_frontier(other);
  }
  keep_to_bound();
}

void Cells::seq_grow(SeqId seq, Cell n) {
  step_.check_closed("seq_grow");
  check_no_frontier("seq_grow", seq);
  if (n <= available()) make_room(n);
  table_.grow(seq, n);
}

bool Cells::seq_grow_run(SeqId seq, Cell n, Cell align) {
  step_.check_closed("seq_grow_run");
  check_no_frontier("seq_grow_run", seq);
  table_.check_id(seq);
  require<InvalidRange>(n >= 1 && align >= 1, "seq_grow_run by ", n, " positions, aligned to ", align, " cells");
  if (table_.pool().find_run(n, align, true) < 0) return false;
  Cell first = 0;
  while ((first = table_.pool().find_run(n, align, false)) < 0) kept_.evict(n);
  table_.grow_at(seq, first, n);
  return true;
}

void Cells::seq_map(SeqId src, SeqId dst, std::span<const Piece> pieces) {
  step_.check_closed("seq_map");
  check_no_frontier("seq_map", dst);
  table_.map(src, dst, pieces);
}

void Cells::set_retention(Cell most) {
  require<InvalidRange>(most >= 0, "retention of ", most, " cells; it must be at least 0");
  most_kept_ = most;
  keep_to_bound();
}

void Cells::seq_retain(SeqId seq, std::span<const std::int32_t> tokens) {
  step_.check_closed("seq_retain");
  if (most_kept_ == 0 || tokens.empty()) return;
  Pos held = 0;
  for (const Run& run : table_.runs(seq)) {
    if (run.position != held) break;
    held = end_position(run);
  }
  require<InvalidRange>(std::ssize(tokens) <= held, "seq_retain of ", tokens.size(), " tokens of sequence ", seq,
                        ", which holds ", held, " positions without a hole");
  kept_.insert(tokens, table_.runs(seq));
}

Pos Cells::seq_recall(SeqId dst, std::span<const std::int32_t> tokens) {
  step_.check_closed("seq_recall");
  check_no_frontier("seq_recall", dst);
  table_.lend(dst, kept_.recall(tokens, table_.length(dst)));
  return table_.length(dst);
}

std::vector<Cell> Cells::cells_at(SeqId seq, Pos p0, Pos p1) const {
  std::vector<Cell> cells;
  for (const Run& run : overlapping(table_.runs(seq), p0, p1)) {
    const Run part = clip(run, p0, p1);
    for (Cell i = 0; i < part.length; ++i) cells.push_back(part.cell + i);
  }
  return cells;
}

void Cells::seq_quantize(SeqId seq, Pos p0, Pos p1) {
  step_.check_closed("seq_quantize");
  const std::vector<Cell> cells = cells_at(seq, p0, p1);
  if (const auto layer = layer_.lock()) layer->to_quantized(cells);
}

// They lack it before the layer hears of it: where that one fails half way, nobody reads what may be gone.
void Cells::seq_discard(SeqId seq, Pos p0, Pos p1, std::uint8_t groups) {
  step_.check_closed("seq_discard");
  std::vector<Cell> cells = cells_at(seq, p0, p1);
  std::erase_if(cells, [&](Cell cell) { return lacks()[static_cast<std::size_t>(cell)] >= groups; });
  for (const Cell cell : cells) table_.pool().set_lacks(cell, groups);
  if (const auto layer = layer_.lock(); layer && !cells.empty()) layer->discard(cells, groups);
}

Cell Cells::compact() {
  step_.check_closed("compact");
  const auto has_nodes = [](const Frontier& nodes) { return nodes.size() > 0; };
  if (!mover_ || std::any_of(frontiers_.begin(), frontiers_.end(), has_nodes)) return 0;
  const CellMoves moves = moves_to_front(table_.pool());
  if (moves.src.empty()) return 0;
  const Moved moved(table_.pool(), moves);
  auto sequences = table_.moved(moved);
  auto kept = kept_.moved(moved);
  mover_(moves.src, moves.dst);  // into free cells: if it throws, nothing has changed
  table_.take_over(std::move(sequences));
  kept_.take_over(std::move(kept));
  table_.pool().move(moves.src, moves.dst);
  return static_cast<Cell>(moves.src.size());
}

void Cells::propose(std::span<const std::int32_t> parents, std::int32_t n, SeqId seq) {
  step_.check_closed("propose");
  table_.check_id(seq);
  if (n < 1) throw InvalidTree(error_text("propose of ", n, " nodes; a tree has at least one"));
  if (static_cast<std::size_t>(n) > parents.size()) {
    throw InvalidTree(error_text("propose of ", n, " nodes; it must be in [1, ", parents.size(), "]"));
  }
  frontier(seq).propose(parents.first(static_cast<std::size_t>(n)));
}

void Cells::commit(std::span<const std::int32_t> accepted, std::int32_t len, SeqId seq) {
  step_.check_closed("commit");
  table_.check_id(seq);
  if (len < 0 || static_cast<std::size_t>(len) > accepted.size()) {
    throw InvalidTree(error_text("commit of ", len, " nodes; it must be in [0, ", accepted.size(), "]"));
  }
  Frontier& nodes = frontier(seq);
  if (len > 0 && nodes.proposed() > 0) {
    throw InvalidStep(error_text("commit of sequence ", seq, ", of which ", nodes.proposed(),
                                 " proposed nodes have not run; step them or abort_step first"));
  }
  const auto chain = accepted.first(static_cast<std::size_t>(len));
  nodes.check_chain(chain);

  std::vector<Cell> cells;
  for (const std::int32_t node : chain) cells.push_back(nodes.cells()[static_cast<std::size_t>(node)]);
  std::vector<Cell> target = cells;
  table_.reserve(seq, chain.size());
  const auto held = table_.runs(seq);
  if (mover_ && len > 0) {
    const Cell next = held.empty() ? 0 : held.back().cell + held.back().length;
    const CellMoves moves = compact_chain(table_.pool(), nodes.cells(), cells, next, target);
    try {
      if (!moves.src.empty()) mover_(moves.src, moves.dst);
    } catch (...) {
      drop_frontier(seq);  // its bytes may be half moved
      throw;
    }
  }
  Pos position = table_.length(seq);
  drop_frontier(seq);
  for (const Cell cell : target) table_.append(seq, position++, cell);
}

}  // namespace agentkv
