#include "engine/adapter_spans.h"

#include <algorithm>
#include <limits>

namespace agentkv {

AdapterId AdapterSpans::at(Pos position) const {
  for (auto span = spans_.rbegin(); span != spans_.rend(); ++span) {
    if (span->from <= position) return span->adapter;
  }
  return kNoAdapter;
}

void AdapterSpans::set(Pos from, AdapterId adapter) {
  std::erase_if(spans_, [from](const Span& span) { return span.from >= from; });
  if (last() != adapter) spans_.push_back({from, adapter});
}

void AdapterSpans::cut(Pos length) {
  std::erase_if(spans_, [length](const Span& span) { return span.from > length; });
}

void AdapterSpans::replace(Pos first, Pos last, Pos count) {
  const AdapterSpans before = *this;
  const AdapterId follows = at(last);
  cut(first);
  if (follows != this->last()) set(first + count, follows);
  for (const Span& span : before.spans_) {
    if (span.from > last) set(span.from - last + first + count, span.adapter);
  }
}

Pos AdapterSpans::same(const AdapterSpans& other, Pos length) const {
  if (spans_ == other.spans_) return length;
  Pos differs = length;
  for (const AdapterSpans* each : {this, &other}) {
    if (at(0) != other.at(0)) return 0;
    for (const Span& span : each->spans_) {
      if (at(span.from) != other.at(span.from)) differs = std::min(differs, span.from);
    }
  }
  return differs;
}

AdapterId CacheKeys::most_adapters() const { return std::numeric_limits<Token>::max() / vocab_size_ - 1; }

std::span<const Token> CacheKeys::of(std::span<const Token> tokens, const AdapterSpans& adapters,
                                     std::vector<Token>& room) const {
  if (adapters.empty()) return tokens;
  room.assign(tokens.begin(), tokens.end());
  for (std::size_t i = 0; i < room.size(); ++i) room[i] = of(room[i], adapters.at(static_cast<Pos>(i)));
  return room;
}

}  // namespace agentkv
