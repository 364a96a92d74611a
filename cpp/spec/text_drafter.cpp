#include "spec/text_drafter.h"

#include <algorithm>

namespace agentkv {

void TextDrafter::observe(BranchId branch, Pos first, std::span<const Token> tokens, std::span<const float>) {
  NgramIndex::Line& line = lines_[branch];
  if (line.length == first) index_.extend(line, tokens);
}

void TextDrafter::shared(BranchId src, BranchId dst, Pos length) {
  NgramIndex::Line line = lines_[src];
  if (line.length < length) return;
  line.length = length;
  lines_[dst] = line;
}

void TextDrafter::truncated(BranchId branch, Pos length) {
  NgramIndex::Line& line = lines_[branch];
  line.length = std::min(line.length, length);
}

void TextDrafter::closed(BranchId branch) { lines_.erase(branch); }

NgramIndex::Line& TextDrafter::caught_up(BranchId branch, std::span<const Token> history) {
  NgramIndex::Line& line = lines_[branch];
  const auto told = history.first(history.size() - 1);
  line.length = std::min(line.length, static_cast<Pos>(told.size()));
  if (line.length == static_cast<Pos>(told.size())) return line;
  // Branches that were there before this drafter are mostly forks of one another: text that they share is read once.
  for (const auto& [other, theirs] : lines_) {
    const Pos common = index_.common_prefix(theirs, told);
    if (common > line.length) line = {theirs.document, common};
  }
  index_.extend(line, told.subspan(static_cast<std::size_t>(line.length)));
  return line;
}

std::span<const Token> TextDrafter::end_of(const DraftRequest& request) {
  const auto n = std::min(request.history.size(), static_cast<std::size_t>(index_.max_ngram()));
  const std::span<const Token> last = request.history.last(n);
  end_.assign(last.begin(), last.end());
  end_.insert(end_.end(), request.forced.begin(), request.forced.end());
  return end_;
}

Token TextDrafter::next_of(std::span<const Token> after, bool own, std::span<const Token> path, std::int32_t depth) {
  const auto at = static_cast<std::size_t>(depth);
  if (at < after.size()) return after[at];
  return own ? path[at - after.size()] : -1;
}

}  // namespace agentkv
