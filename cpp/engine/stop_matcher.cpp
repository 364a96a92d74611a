#include "engine/stop_matcher.h"

#include <algorithm>

#include "core/errors.h"

namespace agentkv {
namespace {

// The special token with the longest spelling that a text begins with; -1 for none.
Token special_at_start(std::string_view text, const Vocabulary& vocabulary) {
  Token longest = -1;
  std::size_t length = 0;
  for (const Token token : vocabulary.special_ids()) {
    const std::string_view bytes = vocabulary.bytes(token);
    if (bytes.size() <= length || !text.starts_with(bytes)) continue;
    longest = token;
    length = bytes.size();
  }
  return longest;
}

}  // namespace

StopMatcher::StopMatcher(const std::vector<std::string>& stops, const Vocabulary& vocabulary) {
  for (const std::string_view stop : stops) {
    if (stop.empty()) throw InvalidSampling("a stop string is empty, but must have at least one byte");
    std::vector<Unit> bytes, tokens;
    for (const char byte : stop) bytes.push_back(static_cast<unsigned char>(byte));
    for (std::size_t i = 0; i < stop.size();) {
      const Token special = special_at_start(stop.substr(i), vocabulary);
      tokens.push_back(special < 0 ? bytes[i] : kSpecial + special);
      i += special < 0 ? 1 : vocabulary.bytes(special).size();
    }
    add(bytes);
    if (tokens != bytes) add(tokens);
  }
  link();
}

void StopMatcher::add(const std::vector<Unit>& stop) {
  std::int32_t node = 0;
  for (const Unit unit : stop) {
    std::int32_t next = child(node, unit);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      nodes_.push_back({.children = {}, .bytes = nodes_[node].bytes + (unit < kSpecial)});
      nodes_[node].children.emplace_back(unit, next);
    }
    node = next;
  }
  nodes_[node].match = nodes_[node].bytes;
}

void StopMatcher::link() {
  std::vector<std::int32_t> order{0};  // breadth first: a fail link leads to a shallower node
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int32_t node = order[i];
    for (const auto& [unit, next] : nodes_[node].children) {
      if (node != 0) nodes_[next].fail = advance(nodes_[node].fail, unit);
      nodes_[next].match = std::max(nodes_[next].match, nodes_[nodes_[next].fail].match);
      order.push_back(next);
    }
  }
}

std::int32_t StopMatcher::child(std::int32_t node, Unit unit) const {
  for (const auto& [label, next] : nodes_[node].children) {
    if (label == unit) return next;
  }
  return -1;
}

std::int32_t StopMatcher::advance(std::int32_t node, Unit unit) const {
  while (true) {
    if (const std::int32_t next = child(node, unit); next >= 0) return next;
    if (node == 0) return 0;
    node = nodes_[node].fail;
  }
}

// True where a stop string is complete there.
bool StopMatcher::enter(std::int32_t node) {
  state_ = node;
  const bool stopped = nodes_[node].match >= 0;
  held_ = stopped ? 0 : static_cast<std::size_t>(nodes_[node].bytes);
  cut_ = stopped ? static_cast<std::size_t>(nodes_[node].match) : 0;
  text_.resize(text_.size() - cut_);
  return stopped;
}

bool StopMatcher::push(std::string_view bytes) {
  for (const char byte : bytes) {
    text_.push_back(byte);
    if (enter(advance(state_, static_cast<unsigned char>(byte)))) return true;
  }
  return false;
}

bool StopMatcher::push_special(Token token) {
  const std::int32_t next = advance(state_, kSpecial + token);
  return next != 0 && enter(next);
}

std::string StopMatcher::take_shown() {
  const std::size_t end = text_.size() - held_;
  std::string shown = text_.substr(shown_, end - shown_);
  shown_ = end;
  return shown;
}

}  // namespace agentkv
