#include "mlx/checks.h"

#include <string>

#include "core/errors.h"
#include "core/message.h"
#include "mlx/owner.h"

namespace agentkv::mlx {

std::string shown(const mx::Shape& shape) {
  std::string out = "[";
  for (const int size : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(size);
  return out + "]";
}

void check_rows(const char* name, const mx::array& rows, const mx::Shape& expected) {
  require<InvalidTensor>(rows.shape() == expected, name, " is ", shown(rows.shape()), "; expected ", shown(expected));
  require<InvalidTensor>(mx::issubdtype(rows.dtype(), mx::floating), name, " is not of a floating dtype");
}

void check_on_owner(const char* verb) {
  if (!is_owner()) throw InvalidStep(error_text(verb, " was called off the thread that owns MLX"));
}

}  // namespace agentkv::mlx
