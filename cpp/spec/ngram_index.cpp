#include "spec/ngram_index.h"

#include <algorithm>
#include <utility>

namespace agentkv {

NgramIndex::NgramIndex(std::vector<std::int32_t> lengths, std::int32_t max_ngram, std::int64_t max_tokens,
                       std::vector<Token> spellings)
    : lengths_(std::move(lengths)), max_ngram_(max_ngram), max_tokens_(max_tokens), spellings_(std::move(spellings)) {}

std::size_t NgramIndex::keys(std::span<const Token> text, Keys& keys) const {
  std::uint64_t hash = 0xcbf29ce484222325u;  // not 0, or leading tokens 0 would not count
  std::size_t hashed = 0;
  const auto mixed = [](std::uint64_t hash, Token token) {
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
  };
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    const auto length = static_cast<std::size_t>(lengths_[i]);
    if (length > text.size()) return i;
    for (; hashed < length; ++hashed) hash = mixed(hash, text[text.size() - 1 - hashed]);
    keys[i] = length == 1 ? mixed(0xcbf29ce484222325u, spelling(text.back())) : hash;
  }
  return lengths_.size();
}

void NgramIndex::extend(Line& line, std::span<const Token> tokens) {
  for (const Token token : tokens) {
    if (follows(line, token)) {
      ++line.length;
      continue;
    }
    Document& document = writable(line);
    if (!document.tokens.empty()) index_last(line.document);  // only an n-gram that something follows is worth finding
    bytes_ -= bytes_of(document);
    document.tokens.push_back(token);
    document.previous.resize(document.tokens.size() * lengths_.size());
    bytes_ += bytes_of(document);
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
  if (alive(line.document) && at(line.document).end() == line.length) {
    Document& document = at(line.document);
    if (document.end() - document.own < kDocumentTokens) return document;
    shrink(document);
  }
  DocumentId source = line.document;
  while (alive(source) && line.length <= at(source).own && alive(at(source).parent)) source = at(source).parent;
  Document next{.parent = source, .first = line.length, .own = line.length, .tokens = {}, .previous = {}};
  if (alive(source) && at(source).first < line.length) {
    const auto end = at(source).tokens.begin() + (line.length - at(source).first);
    next.first = std::max(at(source).first, line.length - max_ngram_);
    next.tokens.assign(end - (line.length - next.first), end);
    next.previous.resize(next.tokens.size() * lengths_.size());
    held_ += line.length - next.first;
  }
  bytes_ += bytes_of(next);
  documents_.push_back(std::move(next));
  line.document = oldest_ + static_cast<DocumentId>(documents_.size()) - 1;
  return documents_.back();
}

void NgramIndex::index_last(DocumentId id) {
  Document& document = at(id);
  const Place place{id, static_cast<std::uint32_t>(document.tokens.size() - 1)};
  Keys keys;
  const std::size_t n = this->keys(document.tokens, keys);
  for (std::size_t i = 0; i < n; ++i) {
    const Place before = newest_.exchange(keys[i], place, [this](Place old) { return alive(old.document); });
    const bool known = alive(before.document);
    if (known) document.previous[place.offset * lengths_.size() + i] = before;
    if (known || i + 1 < lengths_.size()) continue;
    document.new_begin = std::min(document.new_begin, place.offset);
    document.new_last = place.offset;
  }
  steps_ += static_cast<std::int64_t>(n);
}

// Places in it are found no more: whoever meets one sees that it is not alive.
void NgramIndex::forget_oldest() {
  held_ -= static_cast<std::int64_t>(documents_.front().tokens.size());
  bytes_ -= bytes_of(documents_.front());
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

void NgramIndex::find(std::span<const Token> query, std::int32_t max_chain, std::vector<Match>& matches) {
  matches.clear();
  Keys keys;
  for (std::size_t i = this->keys(query, keys); i > 0 && matches.empty(); --i) {
    ++steps_;
    follow(newest_.find(keys[i - 1]), i - 1, query, max_chain, matches);
  }
}

// Goes through the occurrences of the n-gram with that index of lengths_, from the newest on.
void NgramIndex::follow(Place place, std::size_t length, std::span<const Token> query, std::int32_t max_chain,
                        std::vector<Match>& matches) {
  for (std::int32_t visited = 0; visited < max_chain && alive(place.document); ++visited) {
    const Document& document = at(place.document);
    const auto longest = std::min({static_cast<std::size_t>(max_ngram_), query.size(), place.offset + std::size_t{1}});
    std::size_t same = 0;
    while (same < longest && query[query.size() - 1 - same] == document.tokens[place.offset - same]) ++same;
    steps_ += static_cast<std::int64_t>(same) + 1;
    const bool alike = lengths_[length] == 1 && spelling(query.back()) == spelling(document.tokens[place.offset]);
    if (alike) same = std::max(same, std::size_t{1});
    if (same >= static_cast<std::size_t>(lengths_[length])) matches.push_back({place, static_cast<std::int32_t>(same)});
    place = document.previous[place.offset * lengths_.size() + length];
  }
}

std::span<const Token> NgramIndex::after(Place place) const {
  return std::span(at(place.document).tokens).subspan(place.offset + std::size_t{1});
}

bool NgramIndex::ends_at(const Line& line, DocumentId document) const {
  return line.document == document && alive(document) && at(document).end() == line.length;
}

std::int64_t NgramIndex::bytes_of(const Document& document) {
  return static_cast<std::int64_t>(sizeof(Document) + document.tokens.capacity() * sizeof(Token) +
                                   document.previous.capacity() * sizeof(Place));
}

void NgramIndex::shrink(Document& document) {
  bytes_ -= bytes_of(document);
  document.tokens.shrink_to_fit();
  document.previous.shrink_to_fit();
  bytes_ += bytes_of(document);
}

std::size_t NgramIndex::memory_bytes() const { return static_cast<std::size_t>(bytes_) + newest_.memory_bytes(); }

std::vector<std::vector<Token>> NgramIndex::new_text(DocumentId from) const {
  std::vector<std::vector<Token>> texts;
  for (DocumentId id = std::max(from, oldest_); id < next_document(); ++id) {
    const Document& document = at(id);
    if (document.new_begin > document.new_last) continue;
    const auto begin = document.tokens.begin() + (document.new_begin + 1 - lengths_.back());
    texts.emplace_back(begin, document.tokens.begin() + document.new_last + 2);  // with what follows the last n-gram
  }
  return texts;
}

}  // namespace agentkv
