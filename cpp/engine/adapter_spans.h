// Under which adapter each token of a history is computed, and what that makes of tokens where cells are shared.
#pragma once

#include <span>
#include <vector>

#include "engine/types.h"

namespace agentkv {

class AdapterSpans {
 public:
  // Tokens from a position on, as far as the next span, have this adapter.
  struct Span {
    Pos from;
    AdapterId adapter;

    bool operator==(const Span&) const = default;
  };

  AdapterId at(Pos position) const;
  AdapterId last() const { return spans_.empty() ? kNoAdapter : spans_.back().adapter; }
  bool empty() const { return spans_.empty(); }  // no token has one
  const std::vector<Span>& spans() const { return spans_; }

  void set(Pos from, AdapterId adapter);  // of all tokens from there on
  void cut(Pos length);                   // to a history of that length; the next token's adapter stays
  // Tokens [first, last) gave way to `count` others, which have the adapter of the first; those that follow keep
  // theirs.
  void replace(Pos first, Pos last, Pos count);

  // How many of the first `length` tokens have the same adapters in both.
  Pos same(const AdapterSpans& other, Pos length) const;

 private:
  std::vector<Span> spans_;  // in order of `from`, no two neighbours alike
};

// A token under an adapter is another token to whoever compares histories in order to share their cells: this is the
// one place that says which.
class CacheKeys {
 public:
  explicit CacheKeys(Token vocab_size) : vocab_size_(vocab_size) {}

  AdapterId most_adapters() const;  // of which keys can be told apart
  Token of(Token token, AdapterId adapter) const { return token + vocab_size_ * adapter; }
  // Of the beginning of a history. `room` holds them where they differ from the tokens.
  std::span<const Token> of(std::span<const Token> tokens, const AdapterSpans& adapters,
                            std::vector<Token>& room) const;

 private:
  Token vocab_size_;
};

}  // namespace agentkv
