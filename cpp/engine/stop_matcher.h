// Finds stop strings in a stream of bytes, and tells which bytes may be shown already.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agentkv {

// The text ends at the first byte that completes a stop string; of several completed by the same byte the longest
// counts. Bytes are looked at one by one, so the result does not depend on how tokens divide them.
class StopMatcher {
 public:
  explicit StopMatcher(const std::vector<std::string>& stops);  // throws InvalidSampling for an empty stop string

  // Adds bytes to the text. True once a stop string is complete; the text then ends where that began.
  bool push(std::string_view bytes);

  const std::string& text() const { return text_; }  // cut before the stop string
  // The bytes not shown yet that no stop string can claim any more.
  std::string take_shown();
  // The text is over: every byte may be shown.
  void finish() { held_ = 0; }

 private:
  // Aho-Corasick: a node is a prefix of some stop string; `fail` is its longest proper suffix that is one too.
  struct Node {
    std::vector<std::pair<char, std::int32_t>> children;
    std::int32_t fail = 0;
    std::int32_t depth = 0;
    std::int32_t match = 0;  // length of the longest stop string that ends here, 0 for none
  };

  std::int32_t child(std::int32_t node, char byte) const;  // -1 when there is none
  std::int32_t advance(std::int32_t node, char byte) const;

  std::vector<Node> nodes_{1};
  std::int32_t state_ = 0;
  std::string text_;
  std::size_t shown_ = 0;
  std::size_t held_ = 0;  // trailing bytes of text_ that may begin a stop string
};

}  // namespace agentkv
