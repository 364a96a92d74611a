#include "engine/vocabulary.h"

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {
namespace {

// Ids past the model's vocabulary can never be sampled, so they are left out.
std::vector<bool> marked(Token size, std::span<const Token> ids) {
  std::vector<bool> marks(static_cast<std::size_t>(size), false);
  for (const Token id : ids) {
    if (id >= 0 && id < size) marks[static_cast<std::size_t>(id)] = true;
  }
  return marks;
}

}  // namespace

Vocabulary::Vocabulary(Token size, std::span<const std::string_view> token_bytes, std::span<const Token> eos_ids,
                       std::span<const Token> special_ids)
    : size_(size), eos_(marked(size, eos_ids)), special_(marked(size, special_ids)) {
  begin_.reserve(static_cast<std::size_t>(size) + 1);
  for (std::size_t i = 0; i < static_cast<std::size_t>(size); ++i) {
    begin_.push_back(bytes_.size());
    if (i < token_bytes.size()) bytes_ += token_bytes[i];
  }
  begin_.push_back(bytes_.size());
  for (Token token = 0; token < size; ++token) {
    if (is_special(token)) special_ids_.push_back(token);
  }
}

void Vocabulary::check(std::span<const Token> tokens) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= size_) {
      throw InvalidToken(error_text("token id ", tokens[i], " at index ", i,
                                    " is not in the vocabulary: ids go from 0 to ", size_ - 1));
    }
  }
}

}  // namespace agentkv
