#include "core/seq_table.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {
namespace {

// Owner counts are 16 bits wide.
constexpr SeqId kMostSequences = std::numeric_limits<std::uint16_t>::max();

std::size_t checked_count(SeqId max_sequences) {
  if (max_sequences < 1 || max_sequences > kMostSequences) {
    throw InvalidRange(error_text("max_sequences is ", max_sequences, "; it must be in [1, ", kMostSequences, "]"));
  }
  return static_cast<std::size_t>(max_sequences);
}

// Calls use with what of each part lies in the range; only the first and the last part can reach out of it.
template <class Range, class Use>
void for_each_part(std::span<const Run> parts, const Range& range, Use use) {
  use(clip(parts.front(), range.first, range.last));
  if (parts.size() == 1) return;
  for (const Run& part : parts.subspan(1, parts.size() - 2)) use(part);
  use(clip(parts.back(), range.first, range.last));
}

}  // namespace

SeqTable::SeqTable(Cell capacity, SeqId max_sequences)
    : pool_(capacity), sequences_(checked_count(max_sequences)), lengths_(sequences_.size(), 0) {}

std::size_t SeqTable::checked(SeqId seq) const {
  if (seq < 0 || seq >= max_sequences()) {
    throw UnknownSequence(error_text("sequence ", seq, " is out of range [0, ", max_sequences(), ")"));
  }
  return static_cast<std::size_t>(seq);
}

void SeqTable::check_live(SeqId seq) const {
  if (length(seq) == 0) throw UnknownSequence(error_text("sequence ", seq, " holds nothing"));
}

SeqTable::Range SeqTable::checked_range(const char* verb, SeqId seq, Pos p0, Pos p1) const {
  check_live(seq);
  const Pos end = length(seq);
  const Pos last = p1 < 0 ? end : p1;
  if (p0 < 0 || p0 > last || last > end) {
    throw InvalidRange(error_text(verb, " of positions [", p0, ", ", last, ") of sequence ", seq,
                                  ", which holds positions below ", end));
  }
  return {p0, last};
}

SeqId SeqTable::live_sequences() const {
  return static_cast<SeqId>(std::count_if(lengths_.begin(), lengths_.end(), [](Pos length) { return length > 0; }));
}

void SeqTable::copy(SeqId src, SeqId dst, Pos p0, Pos p1) {
  const Range range = checked_range("seq_cp", src, p0, p1);
  RunList& to = sequences_[checked(dst)];
  const RunList& from = sequences_[static_cast<std::size_t>(src)];
  const std::size_t at = find_run(to, range.first);
  if (at < to.size() && range.first < range.last && to[at].position < range.last) {
    throw InvalidRange(error_text("seq_cp to positions [", range.first, ", ", range.last, ") of sequence ", dst,
                                  ", which already holds position ", std::max(to[at].position, range.first)));
  }
  if (range.first == range.last) return;
  Pos& length = lengths_[static_cast<std::size_t>(dst)];
  const std::span<const Run> parts = overlapping(from, range.first, range.last);
  if (parts.empty()) {  // nothing but a hole
    length = std::max(length, range.last);
    return;
  }
  scratch_.clear();
  scratch_.reserve(to.size() + parts.size());
  append_runs(scratch_, std::span(to).first(at));
  append_run(scratch_, clip(parts.front(), range.first, range.last));
  if (parts.size() > 1) {
    append_runs(scratch_, parts.subspan(1, parts.size() - 2));
    append_run(scratch_, clip(parts.back(), range.first, range.last));
  }
  append_runs(scratch_, std::span(to).subspan(at));
  for_each_part(parts, range, [this](const Run& part) { pool_.share(part.cell, part.length); });
  to.swap(scratch_);
  length = std::max(length, range.last);
}

void SeqTable::remove(SeqId seq, Pos p0, Pos p1) {
  forget("seq_rm", seq, p0, p1);
  Pos& length = lengths_[static_cast<std::size_t>(seq)];
  if (p1 < 0 || p1 == length) length = p0;
}

void SeqTable::forget(const char* verb, SeqId seq, Pos p0, Pos p1) {
  const Range range = checked_range(verb, seq, p0, p1);
  RunList& runs = sequences_[static_cast<std::size_t>(seq)];
  reserve_more(runs, 1);  // a hole splits a run
  const std::span<const Run> parts = overlapping(runs, range.first, range.last);
  if (parts.empty()) return;

  const auto begin = static_cast<std::size_t>(parts.data() - runs.data());
  std::size_t end = begin + parts.size();
  const Run before = clip(parts.front(), 0, range.first);
  const Run after = clip(parts.back(), range.last, end_position(parts.back()));
  const bool splits = parts.size() == 1 && before.length > 0 && after.length > 0;
  for_each_part(parts, range, [this](const Run& part) { pool_.release(part.cell, part.length); });
  std::size_t write = begin;
  if (before.length > 0) runs[write++] = before;
  if (splits) runs.insert(runs.begin() + static_cast<std::ptrdiff_t>(end++), after);
  if (after.length > 0) runs[write++] = after;
  runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(write), runs.begin() + static_cast<std::ptrdiff_t>(end));
}

void SeqTable::keep(SeqId seq) {
  check_live(seq);
  for (SeqId other = 0; other < max_sequences(); ++other) {
    if (other == seq) continue;
    RunList& runs = sequences_[static_cast<std::size_t>(other)];
    for (const Run& run : runs) pool_.release(run.cell, run.length);
    runs.clear();
    lengths_[static_cast<std::size_t>(other)] = 0;
  }
}

Pos SeqTable::checked_growth(SeqId seq, Cell n) const {
  const Pos length = this->length(seq);
  require<InvalidRange>(n >= 0 && n < std::numeric_limits<Pos>::max() - length, "seq_grow of sequence ", seq,
                        ", which ends at ", length, ", by ", n, " positions");
  return length;
}

void SeqTable::grow_at(SeqId seq, Cell first, Cell n) {
  const Pos length = checked_growth(seq, n);
  reserve(seq, 1);
  for (Cell i = 0; i < n; ++i) append(seq, length + i, first + i);
}

void SeqTable::grow(SeqId seq, Cell n) {
  RunList& runs = sequences_[checked(seq)];
  const Pos length = checked_growth(seq, n);
  require<CacheFull>(n <= pool_.free(), "seq_grow of sequence ", seq, " by ", n, " positions; ", pool_.free(), " of ",
                     pool_.capacity(), " cells are free");
  std::vector<Cell> cells(static_cast<std::size_t>(n));
  pool_.lowest_free(cells);
  reserve_more(runs, cells.size());
  for (std::size_t i = 0; i < cells.size(); ++i) append(seq, length + static_cast<Pos>(i), cells[i]);
}

void SeqTable::map(SeqId src, SeqId dst, std::span<const Piece> pieces) {
  const RunList& from = sequences_[checked(src)];
  RunList& to = sequences_[checked(dst)];
  require<InvalidRange>(src != dst, "seq_map of sequence ", src, " into itself");
  check_pieces(src, dst, pieces);
  scratch_ = to;
  for (const Piece& piece : pieces) {
    const Range range{piece.from, piece.from + piece.length};
    Pos at = range.first;
    for (const Run& run : overlapping(from, range.first, range.last)) {
      const Run part = clip(run, range.first, range.last);
      if (part.position != at) break;
      append_run(scratch_, {at - piece.from + piece.to, part.cell, part.length});
      at = end_position(part);
    }
    require<InvalidRange>(at == range.last, "seq_map of position ", at, " of sequence ", src, ", which is a hole");
  }
  for (const Piece& piece : pieces) {
    const Range range{piece.from, piece.from + piece.length};
    for_each_part(overlapping(from, range.first, range.last), range,
                  [this](const Run& part) { pool_.share(part.cell, part.length); });
  }
  to.swap(scratch_);
  if (!pieces.empty()) lengths_[static_cast<std::size_t>(dst)] = pieces.back().to + pieces.back().length;
}

void SeqTable::check_pieces(SeqId src, SeqId dst, std::span<const Piece> pieces) const {
  const Pos most = length(src);
  std::int64_t end = length(dst);
  for (const Piece& piece : pieces) {
    const std::int64_t last = std::int64_t{piece.from} + piece.length;
    require<InvalidRange>(piece.length >= 1 && piece.from >= 0 && last <= most, "seq_map of ", piece.length,
                          " positions from ", piece.from, " of sequence ", src, ", which ends at ", most);
    require<InvalidRange>(piece.to >= end, "seq_map to position ", piece.to, " of sequence ", dst, ", which ends at ",
                          end, " by then");
    end = std::int64_t{piece.to} + piece.length;
  }
  require<InvalidRange>(end < std::numeric_limits<Pos>::max(), "seq_map to position ", end, " of sequence ", dst);
  std::vector<Piece> sorted(pieces.begin(), pieces.end());
  std::sort(sorted.begin(), sorted.end(), [](const Piece& a, const Piece& b) { return a.from < b.from; });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    require<InvalidRange>(sorted[i].from >= sorted[i - 1].from + sorted[i - 1].length, "seq_map of position ",
                          sorted[i].from, " of sequence ", src, " twice");  // cells count their owners in 16 bits
  }
}

Pos SeqTable::shared_end(SeqId seq) const {
  const std::span<const Run> list = runs(seq);
  for (auto run = list.rbegin(); run != list.rend(); ++run) {
    for (Cell i = run->length; i-- > 0;) {
      if (pool_.owners(run->cell + i) > 1) return run->position + i + 1;
    }
  }
  return 0;
}

std::vector<RunList> SeqTable::moved(const Moved& moved) const {
  std::vector<RunList> out;
  out.reserve(sequences_.size());
  for (const RunList& runs : sequences_) out.push_back(moved.runs(runs));
  return out;
}

void SeqTable::lend(SeqId seq, std::span<const Run> more) {
  RunList& runs = sequences_[checked(seq)];
  reserve_more(runs, more.size());
  for (const Run& run : more) pool_.share(run.cell, run.length);
  append_runs(runs, more);
  lengths_[static_cast<std::size_t>(seq)] = std::max(length(seq), end_position(more));
}

void SeqTable::clear() noexcept {
  for (RunList& runs : sequences_) runs.clear();
  std::fill(lengths_.begin(), lengths_.end(), 0);
  pool_.clear();
}

void SeqTable::reserve(SeqId seq, std::size_t tokens) { reserve_more(sequences_[checked(seq)], tokens); }

void SeqTable::append(SeqId seq, Pos position, Cell cell) noexcept {
  pool_.take(cell);
  append_run(sequences_[static_cast<std::size_t>(seq)], {position, cell, 1});
  lengths_[static_cast<std::size_t>(seq)] = position + 1;
}

}  // namespace agentkv
