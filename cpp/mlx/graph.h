// Runs a serialised graph on MLX: one exported program over constants that are loaded once.
#pragma once

#include <mlx/array.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "mlx/graph_blob.h"
#include "mlx/graph_ops.h"

namespace agentkv::mlx {

// The named constant, in the dtype and shape that the graph expects of it.
using ConstantLoader = std::function<mx::array(const std::string& key, mx::Dtype dtype, const mx::Shape& shape)>;

// Made, run and destroyed on the thread that owns MLX.
class Graph {
 public:
  // Throws ProgramError for a damaged blob or a constant that is not as the blob says, and what `load` throws.
  Graph(const void* data, std::size_t size, const ConstantLoader& load);

  const std::vector<ValueType>& inputs() const { return blob_.inputs; }
  const std::vector<GraphOutput>& outputs() const { return blob_.outputs; }

  // One forward over the open step of `cache`. The results are lazy, in the order of outputs(). Throws InvalidTensor
  // naming the instruction and its arguments, and what the cache throws; the cache must then abandon the forward.
  std::vector<mx::array> run(std::span<const Input> inputs, KvCache& cache) const;

 private:
  void plan_drops();
  void check_inputs(std::span<const Input> inputs) const;
  mx::array run_instruction(std::size_t index, Frame& frame) const;
  std::vector<mx::array> take_outputs(const Frame& frame) const;

  GraphBlob blob_;
  std::vector<mx::array> constants_;
  // Per instruction, the values that none after it needs: held on to, they could not be written over in place.
  std::vector<std::vector<std::size_t>> drops_;
};

}  // namespace agentkv::mlx
