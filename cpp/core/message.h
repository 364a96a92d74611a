// Error text from pieces: error_text("sequence ", id, " is out of range"), and errors with it.
#pragma once

#include <sstream>
#include <string>

namespace agentkv {

template <class... Parts>
std::string error_text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws an Error with that text unless `ok`; the text is made only then.
template <class Error, class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) throw Error(error_text(parts...));
}

}  // namespace agentkv
