// Binds a struct by its table of fields (engine/field.h).
#pragma once

#include <nanobind/nanobind.h>

#include <new>
#include <tuple>
#include <utility>

#include "engine/field.h"

namespace agentkv {

// Every field as a read-only attribute.
template <class Struct, class... Values>
void bind_attributes(nanobind::class_<Struct>& bound, const std::tuple<Field<Struct, Values>...>& fields) {
  std::apply([&](const auto&... field) { (bound.def_ro(field.name, field.member), ...); }, fields);
}

template <class Value>
auto keyword(const char* name, const Value& standard) {
  if constexpr (requires { standard == nullptr; }) {
    return nanobind::arg(name) = nanobind::none();
  } else {
    return nanobind::arg(name) = standard;
  }
}

// And as a keyword of the constructor, with the default that the struct gives it.
template <class Struct, class... Values>
void bind_fields(nanobind::class_<Struct>& bound, const std::tuple<Field<Struct, Values>...>& fields) {
  const auto construct = [fields](Struct* self, Values... values) {
    new (self) Struct;
    std::apply([&](const auto&... field) { ((self->*field.member = std::move(values)), ...); }, fields);
  };
  const auto bind = [&](const auto&... field) {
    const Struct defaults;
    bound.def("__init__", construct, nanobind::kw_only(), keyword(field.name, defaults.*field.member)...);
  };
  std::apply(bind, fields);
  bind_attributes(bound, fields);
}

}  // namespace agentkv
