// Binds a struct by its table of fields (engine/field.h): read-only attributes, and a constructor of keywords.
#pragma once

#include <nanobind/nanobind.h>

#include <new>
#include <tuple>

#include "engine/field.h"

namespace agentkv {

template <class Struct, class... Values>
void bind_attributes(nanobind::class_<Struct>& bound, const std::tuple<Field<Struct, Values>...>& fields) {
  std::apply([&](const auto&... field) { (bound.def_ro(field.name, field.member), ...); }, fields);
}

// Every field is a keyword, with the default that the struct gives it.
template <class Struct, class... Values>
void bind_constructor(nanobind::class_<Struct>& bound, const std::tuple<Field<Struct, Values>...>& fields) {
  const Struct defaults;
  const auto construct = [fields](Struct* self, Values... values) {
    new (self) Struct;
    std::apply([&](const auto&... field) { ((self->*field.member = values), ...); }, fields);
  };
  std::apply(
      [&](const auto&... field) {
        bound.def("__init__", construct, nanobind::kw_only(), (nanobind::arg(field.name) = defaults.*field.member)...);
      },
      fields);
}

}  // namespace agentkv
