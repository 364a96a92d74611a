// LoRA adapters: y += B (A x) of some rows of linear layers, with float weights beside whatever the layer's own are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/registry.h"
#include "cpu/heads_view.h"
#include "cpu/kernels/adapter_table.h"

namespace agentkv::cpu {

// Of one layer among those that one weight holds: A [rank, inputs], B [outputs, rank] with the scale in it, row by row.
struct LowRank {
  int first = 0;  // of its outputs, among the weight's
  int outputs = 0;
  int rank = 0;
  std::span<const float> a, b;
};

// The layers of one weight, as the kernels read them.
class AdapterWeight {
 public:
  // Throws InvalidTensor where matrices are not of their shapes, layers overlap, or there is none.
  AdapterWeight(int inputs, std::span<const LowRank> layers);

  int inputs() const { return inputs_; }
  int outputs() const { return outputs_; }  // one past the last that it adds to
  std::size_t bytes() const { return (a_.size() + b_.size()) * sizeof(float); }

  // y[rows] += B (A x[rows]), of at most kAdapterRows rows. The bits of a row of y depend on that row of x and of y
  // alone: not on the others, nor on the instruction set where it has FMA.
  void add(const HeadsView& x, const MutableHeadsView& y, std::span<const std::int32_t> rows) const;

 private:
  int inputs_, outputs_ = 0;
  int ranks_ = 0;             // of all layers, up to a multiple of kAdapterRanks
  std::vector<float> a_, b_;  // see adapter_table.h
  std::vector<AdapterPart> parts_;
};

// By the names of weights.
class Adapter {
 public:
  void add(const std::string& weight, AdapterWeight layers) { weights_.insert_or_assign(weight, std::move(layers)); }
  const AdapterWeight* find(const std::string& weight) const;

 private:
  std::map<std::string, AdapterWeight> weights_;
};

// The rows of a forward that have adapters, by adapter.
class AdapterRows final : public RowAdapters {
 public:
  void assign(std::span<const Adapter* const> rows);  // null: that row has none
  void clear();
  bool empty() const { return groups_.empty(); }
  std::size_t rows() const { return rows_; }  // of the forward

  struct Group {
    const Adapter* adapter;
    std::vector<std::int32_t> rows;
  };
  const std::vector<Group>& groups() const { return groups_; }

 private:
  std::vector<Group> groups_;
  std::size_t rows_ = 0;
};

// To y, the layers of `weight` over x, what the rows' adapters add there. Throws InvalidTensor where an adapter's
// shapes do not fit, or x has other rows.
void add_adapters(const AdapterRows& rows, const std::string& weight, const HeadsView& x, const MutableHeadsView& y,
                  const ParallelFor& parallel_for);

}  // namespace agentkv::cpu
