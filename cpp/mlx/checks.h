// What the cache asks of its arguments.
#pragma once

#include <mlx/array.h>

#include <string>

namespace agentkv::mlx {

namespace mx = ::mlx::core;

// A shape for people: "[1, 2]".
std::string shown(const mx::Shape& shape);
// Throws InvalidTensor unless the array has that shape and a floating dtype.
void check_rows(const char* name, const mx::array& rows, const mx::Shape& expected);
// Throws InvalidStep off the thread that owns MLX.
void check_on_owner(const char* verb);

}  // namespace agentkv::mlx
