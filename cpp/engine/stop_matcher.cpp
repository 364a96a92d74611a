#include "engine/stop_matcher.h"

#include <algorithm>

#include "core/errors.h"

namespace agentkv {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) throw InvalidSampling("a stop string is empty, but must have at least one byte");
    std::int32_t node = 0;
    for (const char byte : stop) {
      std::int32_t next = child(node, byte);
      if (next < 0) {
        next = static_cast<std::int32_t>(nodes_.size());
        nodes_.push_back({.children = {}, .fail = 0, .depth = nodes_[node].depth + 1, .match = 0});
        nodes_[node].children.emplace_back(byte, next);
      }
      node = next;
    }
    nodes_[node].match = nodes_[node].depth;
  }
  std::vector<std::int32_t> order{0};  // breadth first: a fail link leads to a shallower node
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int32_t node = order[i];
    for (const auto& [byte, next] : nodes_[node].children) {
      if (node != 0) nodes_[next].fail = advance(nodes_[node].fail, byte);
      nodes_[next].match = std::max(nodes_[next].match, nodes_[nodes_[next].fail].match);
      order.push_back(next);
    }
  }
}

std::int32_t StopMatcher::child(std::int32_t node, char byte) const {
  for (const auto& [label, next] : nodes_[node].children) {
    if (label == byte) return next;
  }
  return -1;
}

std::int32_t StopMatcher::advance(std::int32_t node, char byte) const {
  while (true) {
    if (const std::int32_t next = child(node, byte); next >= 0) return next;
    if (node == 0) return 0;
    node = nodes_[node].fail;
  }
}

bool StopMatcher::push(std::string_view bytes) {
  for (const char byte : bytes) {
    text_.push_back(byte);
    state_ = advance(state_, byte);
    if (const std::int32_t length = nodes_[state_].match; length > 0) {
      text_.resize(text_.size() - static_cast<std::size_t>(length));
      held_ = 0;
      return true;
    }
  }
  held_ = static_cast<std::size_t>(nodes_[state_].depth);
  return false;
}

std::string StopMatcher::take_shown() {
  const std::size_t end = text_.size() - held_;
  std::string shown = text_.substr(shown_, end - shown_);
  shown_ = end;
  return shown;
}

}  // namespace agentkv
