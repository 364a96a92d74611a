// Finds stop strings in a stream of tokens, and tells which bytes may be shown already.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/vocabulary.h"

namespace agentkv {

// The text ends at the first byte that completes a stop string; of several completed by the same byte the longest
// counts. Bytes are looked at one by one, so the result does not depend on how tokens divide them. A special token has
// no bytes in the text; a stop string that spells it out matches the token, and the same characters as text.
class StopMatcher {
 public:
  // Throws InvalidSampling for an empty stop string.
  StopMatcher(const std::vector<std::string>& stops, const Vocabulary& vocabulary);

  // Adds bytes to the text. True once a stop string is complete; the text then ends where that began.
  bool push(std::string_view bytes);
  // The same of a special token. One that no stop string goes on with is passed over.
  bool push_special(Token token);

  const std::string& text() const { return text_; }  // cut before the stop string
  std::size_t cut() const { return cut_; }           // bytes of the stop string that were text
  // The bytes not shown yet that no stop string can claim any more.
  std::string take_shown();
  // The text is over: every byte may be shown.
  void finish() { held_ = 0; }

 private:
  using Unit = std::int32_t;  // a byte, or kSpecial + a special token
  static constexpr Unit kSpecial = 256;

  // Aho-Corasick: a node is a prefix of some stop string; `fail` is its longest proper suffix that is one too.
  struct Node {
    std::vector<std::pair<Unit, std::int32_t>> children;
    std::int32_t fail = 0;
    std::int32_t bytes = 0;   // of the prefix, those of the text
    std::int32_t match = -1;  // such bytes of the longest stop string that ends here, -1 for none
  };

  void add(const std::vector<Unit>& stop);
  void link();
  std::int32_t child(std::int32_t node, Unit unit) const;  // -1 when there is none
  std::int32_t advance(std::int32_t node, Unit unit) const;
  bool enter(std::int32_t node);

  std::vector<Node> nodes_{1};
  std::int32_t state_ = 0;
  std::string text_;
  std::size_t shown_ = 0;
  std::size_t held_ = 0;  // trailing bytes of text_ that may begin a stop string
  std::size_t cut_ = 0;
};

}  // namespace agentkv
