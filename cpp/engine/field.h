// A row of a struct's table of fields: from it the bindings make what Python sees, under the same name.
#pragma once

namespace agentkv {

template <class Struct, class Value>
struct Field {
  const char* name;
  Value Struct::* member;
};

}  // namespace agentkv
