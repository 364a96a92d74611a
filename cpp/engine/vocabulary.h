// The step loop's view of tokens: their bytes, and which are special or end a generation.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/types.h"

namespace agentkv {

class Vocabulary {
 public:
  // size: the model's vocabulary, which may be larger than the tokenizer's; tokens past token_bytes have no bytes.
  Vocabulary(Token size, std::span<const std::string_view> token_bytes, std::span<const Token> eos_ids,
             std::span<const Token> special_ids);

  Token size() const { return size_; }
  std::string_view bytes(Token token) const {
    const auto i = static_cast<std::size_t>(token);
    return std::string_view(bytes_).substr(begin_[i], begin_[i + 1] - begin_[i]);
  }
  bool is_eos(Token token) const { return eos_[static_cast<std::size_t>(token)]; }
  bool is_special(Token token) const { return special_[static_cast<std::size_t>(token)]; }
  std::span<const Token> special_ids() const { return special_ids_; }

  void check(std::span<const Token> tokens) const;  // throws InvalidToken

 private:
  Token size_;
  std::string bytes_;
  std::vector<std::size_t> begin_;  // [size + 1] into bytes_
  std::vector<bool> eos_;
  std::vector<bool> special_;
  std::vector<Token> special_ids_;
};

}  // namespace agentkv
