// Asserts for the C++ tests: a failure prints where and what, and the process exits 1.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <iostream>
#include <sstream>
#include <string>

namespace agentkv::testing {

template <class Value>
std::string shown(const Value& value) {
  if constexpr (requires { std::cout << value; }) {
    std::ostringstream out;
    out << value;
    return out.str();
  } else {
    return "?";
  }
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::exit(1);
}

}  // namespace agentkv::testing

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) agentkv::testing::fail(__FILE__, __LINE__, "CHECK(" #condition ")"); \
  } while (false)

#define CHECK_EQ(a, b)                                                                                  \
  do {                                                                                                  \
    const auto& check_a = (a);                                                                          \
    const auto& check_b = (b);                                                                          \
    if (!(check_a == check_b)) {                                                                        \
      agentkv::testing::fail(__FILE__, __LINE__,                                                        \
                             "CHECK_EQ(" #a ", " #b "): " + agentkv::testing::shown(check_a) + " vs " + \
                                 agentkv::testing::shown(check_b));                                     \
    }                                                                                                   \
  } while (false)

// The expression throws Exception, and its message contains every part of `...` (string literals).
#define CHECK_THROWS(expression, Exception, ...)                                                             \
  do {                                                                                                       \
    bool check_thrown = false;                                                                               \
    try {                                                                                                    \
      (void)(expression);                                                                                    \
    } catch (const Exception& error) {                                                                       \
      check_thrown = true;                                                                                   \
      for (const std::string& part : std::initializer_list<std::string>{__VA_ARGS__}) {                      \
        if (std::string(error.what()).find(part) == std::string::npos) {                                     \
          agentkv::testing::fail(__FILE__, __LINE__,                                                         \
                                 "message '" + std::string(error.what()) + "' lacks '" + part + "'");        \
        }                                                                                                    \
      }                                                                                                      \
    }                                                                                                        \
    if (!check_thrown) agentkv::testing::fail(__FILE__, __LINE__, #expression " did not throw " #Exception); \
  } while (false)
