// A Python exception as text, for errors that outlive the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

namespace agentkv {

// "ValueError: what it says", with lone surrogates as `?`. Needs the GIL.
inline std::string describe(const nanobind::python_error& error) {
  namespace nb = nanobind;
  std::string name = nb::cast<std::string>(error.type().attr("__name__"));
  try {
    const nb::bytes said(nb::str(error.value()).attr("encode")("utf-8", "replace"));
    const std::string text(said.c_str(), said.size());
    return text.empty() ? name : name + ": " + text;
  } catch (nb::python_error&) {
    return name;  // its own __str__ raises
  }
}

}  // namespace agentkv
