// The stop matcher against a search of the whole text after every byte.
#include <random>
#include <string>
#include <vector>

#include "core/errors.h"
#include "cpp/check.h"
#include "engine/stop_matcher.h"

using namespace agentkv;

namespace {

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

struct Reference {
  std::vector<std::string> stops;
  std::string text;
  bool stopped = false;

  void push(char byte) {
    text.push_back(byte);
    std::size_t longest = 0;
    for (const auto& stop : stops) {
      if (ends_with(text, stop)) longest = std::max(longest, stop.size());
    }
    stopped = longest > 0;
    text.resize(text.size() - longest);
  }

  std::size_t held() const {  // the longest end of the text that may become a stop string
    std::size_t longest = 0;
    for (const auto& stop : stops) {
      for (std::size_t n = 1; n < stop.size(); ++n) {
        if (ends_with(text, stop.substr(0, n))) longest = std::max(longest, n);
      }
    }
    return stopped ? 0 : longest;
  }
};

std::string random_string(std::mt19937& rng, int min, int max) {
  std::string s;
  for (int n = std::uniform_int_distribution(min, max)(rng); n > 0; --n) s.push_back("abc"[rng() % 3]);
  return s;
}

void agrees_with_the_reference() {
  std::mt19937 rng(7);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (int n = static_cast<int>(rng() % 5); n > 0; --n) stops.push_back(random_string(rng, 1, 6));
    StopMatcher matcher(stops);
    Reference reference{.stops = stops, .text = {}};
    std::string shown;
    bool stopped = false;
    while (!stopped && reference.text.size() < 60) {
      const std::string piece = random_string(rng, 0, 4);  // bytes of one token
      for (const char byte : piece) {
        if (!reference.stopped) reference.push(byte);
      }
      stopped = matcher.push(piece);
      shown += matcher.take_shown();
      CHECK_EQ(stopped, reference.stopped);
      CHECK_EQ(matcher.text(), reference.text);
      CHECK_EQ(shown, reference.text.substr(0, reference.text.size() - reference.held()));
    }
    matcher.finish();
    CHECK_EQ(shown + matcher.take_shown(), reference.text);
  }
}

void bytes_are_any_bytes() {
  StopMatcher matcher({std::string("\0\xff", 2), "\xe2\x82\xac"});
  CHECK(!matcher.push(std::string("x\0", 2)));
  CHECK_EQ(matcher.take_shown(), "x");
  CHECK(matcher.push("\xff tail"));
  CHECK_EQ(matcher.text(), "x");
}

void empty_stop_strings_are_refused() { CHECK_THROWS(StopMatcher({"a", ""}), InvalidSampling, "empty", "one byte"); }

}  // namespace

int main() {
  agrees_with_the_reference();
  bytes_are_any_bytes();
  empty_stop_strings_are_refused();
}
