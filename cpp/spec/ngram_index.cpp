#include "spec/ngram_index.h"

#include <algorithm>
#include <utility>

namespace agentkv {

NgramIndex::NgramIndex(std::int32_t min_ngram, std::int32_t max_ngram, std::int64_t max_tokens)
    : min_ngram_(min_ngram), max_ngram_(max_ngram), max_tokens_(max_tokens) {}

std::uint64_t NgramIndex::key(const Token* last) const {
  std::uint64_t hash = 0;
  for (const Token* token = last - min_ngram_ + 1; token <= last; ++token) {
    hash = (hash ^ static_cast<std::uint32_t>(*token)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

void NgramIndex::extend(Line& line, std::span<const Token> tokens) {
  for (const Token token : tokens) {
    if (follows(line, token)) {
      ++line.length;
      continue;
    }
    Document& document = writable(line);
    // Only an n-gram that something follows is worth finding.
    if (document.tokens.size() >= static_cast<std::size_t>(min_ngram_)) index_last(line.document);
    document.tokens.push_back(token);
    document.previous.emplace_back();
    ++line.length;
    ++held_;
    ++indexed_;
    while (held_ > max_tokens_) forget_oldest();
  }
}

bool NgramIndex::follows(const Line& line, Token token) const {
  if (!alive(line.document)) return false;
  const Document& document = at(line.document);
  return document.first <= line.length && line.length < document.end() &&
         document.tokens[static_cast<std::size_t>(line.length - document.first)] == token;
}

NgramIndex::Document& NgramIndex::writable(Line& line) {
  if (alive(line.document)) {
    Document& document = at(line.document);
    if (document.end() == line.length && document.end() - document.own < kDocumentTokens) return document;
  }
  DocumentId source = line.document;
  while (alive(source) && line.length <= at(source).own && alive(at(source).parent)) source = at(source).parent;
  Document next{source, line.length, line.length, {}, {}};
  if (alive(source) && at(source).first < line.length) {
    const auto end = at(source).tokens.begin() + (line.length - at(source).first);
    next.first = std::max(at(source).first, line.length - max_ngram_);
    next.tokens.assign(end - (line.length - next.first), end);
    next.previous.resize(next.tokens.size());
    held_ += line.length - next.first;
  }
  documents_.push_back(std::move(next));
  line.document = oldest_ + static_cast<DocumentId>(documents_.size()) - 1;
  return documents_.back();
}

void NgramIndex::index_last(DocumentId id) {
  Document& document = at(id);
  const Place place{id, static_cast<std::uint32_t>(document.tokens.size() - 1)};
  const auto [entry, added] = newest_.try_emplace(key(&document.tokens.back()), place);
  if (!added) document.previous.back() = std::exchange(entry->second, place);
}

void NgramIndex::forget_oldest() {
  const Document& document = documents_.front();
  for (auto offset = static_cast<std::size_t>(min_ngram_) - 1; offset < document.tokens.size(); ++offset) {
    const auto entry = newest_.find(key(&document.tokens[offset]));
    const Place place{oldest_, static_cast<std::uint32_t>(offset)};
    if (entry != newest_.end() && entry->second == place) newest_.erase(entry);
  }
  held_ -= static_cast<std::int64_t>(document.tokens.size());
  documents_.pop_front();
  ++oldest_;
}

Pos NgramIndex::common_prefix(const Line& line, std::span<const Token> text) const {
  Pos common = std::min(line.length, static_cast<Pos>(text.size()));
  DocumentId id = line.document;
  for (Pos begin = common; begin > 0; id = at(id).parent) {
    if (!alive(id)) return 0;
    const Document& document = at(id);
    if (document.own >= begin) continue;
    const auto own = document.tokens.begin() + (document.own - document.first);
    const auto differs = std::mismatch(text.begin() + document.own, text.begin() + begin, own).first;
    if (differs != text.begin() + begin) common = static_cast<Pos>(differs - text.begin());
    begin = document.own;
  }
  return common;
}

void NgramIndex::find(std::span<const Token> query, std::int32_t max_chain, std::vector<Match>& matches) const {
  matches.clear();
  if (query.size() < static_cast<std::size_t>(min_ngram_)) return;
  const auto entry = newest_.find(key(&query.back()));
  if (entry == newest_.end()) return;
  Place place = entry->second;
  for (std::int32_t visited = 0; visited < max_chain && alive(place.document); ++visited) {
    const Document& document = at(place.document);
    const auto longest = std::min({static_cast<std::size_t>(max_ngram_), query.size(), place.offset + std::size_t{1}});
    std::size_t length = 0;
    while (length < longest && query[query.size() - 1 - length] == document.tokens[place.offset - length]) ++length;
    if (length >= static_cast<std::size_t>(min_ngram_)) matches.push_back({place, static_cast<std::int32_t>(length)});
    place = document.previous[place.offset];
  }
}

std::span<const Token> NgramIndex::after(Place place) const {
  return std::span(at(place.document).tokens).subspan(place.offset + std::size_t{1});
}

bool NgramIndex::ends_at(const Line& line, DocumentId document) const {
  return line.document == document && alive(document) && at(document).end() == line.length;
}

}  // namespace agentkv
