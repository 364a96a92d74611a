// The stop matcher against a search of the whole text after every byte.
#include <random>
#include <string>
#include <vector>

#include "core/errors.h"
#include "cpp/check.h"
#include "engine/stop_matcher.h"

using namespace agentkv;

namespace {

const Vocabulary kPlain{0, {}, {}, {}};

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
    StopMatcher matcher(stops, kPlain);
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
  StopMatcher matcher({std::string("\0\xff", 2), "\xe2\x82\xac"}, kPlain);
  CHECK(!matcher.push(std::string("x\0", 2)));
  CHECK_EQ(matcher.take_shown(), "x");
  CHECK(matcher.push("\xff tail"));
  CHECK_EQ(matcher.text(), "x");
}

// Tokens 0 to 2 are special: "<a>", "<a><b>" and "" (which no stop string can spell).
void special_tokens_are_matched_by_what_they_spell() {
  struct Case {
    std::vector<std::string> stops;
    std::vector<std::string> pushed;  // "0" to "2": that special token
    std::string text;                 // where the stop string was found with the last of them, else as it is shown
    bool stopped;
  };
  const std::vector<std::string_view> bytes{"<a>", "<a><b>", ""};
  const std::vector<Token> special{0, 1, 2};
  const Vocabulary vocabulary(3, bytes, {}, special);
  const std::vector<Case> cases{
      {{"<a>"}, {"x", "0"}, "x", true},
      {{"<a>"}, {"x<", "a", ">"}, "x", true},  // the same characters as text
      {{"<a>"}, {"x", "1"}, "x", false},       // the longest token that is spelled
      {{"<a><b>"}, {"x", "1"}, "x", true},
      {{"a", ">"}, {"x", "0"}, "x", false},  // no part of a token
      {{"\n<a>"}, {"x\n", "0"}, "x", true},
      {{"\n<a>"}, {"x\n", "1", "y"}, "x\ny", false},
      {{"<a>end"}, {"x", "0", "en", "d"}, "x", true},
      {{"<a>end"}, {"x", "0", "en"}, "x", false},  // held back
      {{"<a>end"}, {"x", "0", "en", "!"}, "xen!", false},
      {{"<a>x<a>"}, {"x", "0", "x", "0"}, "x", true},
      {{"ab"}, {"xa", "0", "b"}, "x", true},  // in the text they stand side by side
      {{"<a>b", "c"}, {"0", "2", "b"}, "", true},
  };
  for (const Case& c : cases) {
    StopMatcher matcher(c.stops, vocabulary);
    bool stopped = false;
    std::string shown;
    for (const std::string& each : c.pushed) {
      CHECK(!stopped);
      const bool token = each.size() == 1 && each[0] >= '0' && each[0] <= '2';
      stopped = token ? matcher.push_special(each[0] - '0') : matcher.push(each);
      shown += matcher.take_shown();
    }
    CHECK_EQ(stopped, c.stopped);
    CHECK_EQ(shown, c.text);
    if (stopped) CHECK_EQ(matcher.text(), c.text);
  }
}

void empty_stop_strings_are_refused() {
  CHECK_THROWS(StopMatcher({"a", ""}, kPlain), InvalidSampling, "empty", "one byte");
}

}  // namespace

int main() {
  agrees_with_the_reference();
  bytes_are_any_bytes();
  special_tokens_are_matched_by_what_they_spell();
  empty_stop_strings_are_refused();
}
