// Token ids as Python gives them: any iterable of integers, or an integer array.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <limits>
#include <vector>

#include "core/errors.h"
#include "core/message.h"
#include "engine/types.h"

namespace agentkv {

namespace nb = nanobind;

inline constexpr Token kAnyToken = std::numeric_limits<Token>::max();

// Ids that do not fit a Token are refused here, the others by the engine, with the same words.
inline Token token_of(long long id, nb::handle shown, Token vocab_size) {
  if (id < std::numeric_limits<Token>::min() || id > kAnyToken) {
    throw InvalidToken(error_text("token id ", nb::str(shown).c_str(), " is not in the vocabulary: ids go from 0 to ",
                                  vocab_size - 1));
  }
  return static_cast<Token>(id);
}

template <class Integer>
bool tokens_of_array(nb::handle source, std::vector<Token>& tokens, Token vocab_size) {
  nb::ndarray<const Integer, nb::ndim<1>, nb::c_contig, nb::device::cpu> array;
  if (!nb::try_cast(source, array, false)) return false;
  tokens.reserve(array.size());
  for (std::size_t i = 0; i < array.size(); ++i) {
    tokens.push_back(token_of(array.data()[i], nb::int_(array.data()[i]), vocab_size));
  }
  return true;
}

template <>
inline bool tokens_of_array<Token>(nb::handle source, std::vector<Token>& tokens, Token) {
  nb::ndarray<const Token, nb::ndim<1>, nb::c_contig, nb::device::cpu> array;
  if (!nb::try_cast(source, array, false)) return false;
  tokens.assign(array.data(), array.data() + array.size());
  return true;
}

inline std::vector<Token> tokens_of(nb::handle source, Token vocab_size = kAnyToken) {
  std::vector<Token> tokens;
  const bool sequence = nb::isinstance<nb::list>(source) || nb::isinstance<nb::tuple>(source);
  if (!sequence && tokens_of_array<std::int32_t>(source, tokens, vocab_size)) return tokens;
  if (!sequence && tokens_of_array<std::int64_t>(source, tokens, vocab_size)) return tokens;
  for (const nb::handle item : source) {
    const nb::object index = nb::steal(PyNumber_Index(item.ptr()));
    if (!index.is_valid()) throw nb::python_error();
    int overflow = 0;
    const long long id = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    tokens.push_back(token_of(overflow ? std::numeric_limits<long long>::max() : id, index, vocab_size));
  }
  return tokens;
}

}  // namespace agentkv
