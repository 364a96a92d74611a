#include "cpu/adapter.h"

#include <algorithm>

#include "core/errors.h"
#include "core/isa.h"
#include "core/message.h"
#include "cpu/tasks.h"

namespace agentkv::cpu {

AGENTKV_DEFINE_KERNELS(AdapterKernelTable, adapter_kernels)

namespace {

int rounded_up(int n, int to) { return (n + to - 1) / to * to; }

std::size_t product(int a, int b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); }

void check(int inputs, std::span<const LowRank> layers) {
  require<InvalidTensor>(inputs > 0 && !layers.empty(), "an adapter of ", layers.size(), " layers of ", inputs,
                         " inputs: give at least one of each");
  int end = 0;
  for (const LowRank& layer : layers) {
    require<InvalidTensor>(layer.first >= end && layer.outputs > 0 && layer.rank > 0, "an adapter of rank ", layer.rank,
                           " for outputs from ", layer.first, " on, ", layer.outputs, " of them, behind ", end);
    require<InvalidTensor>(
        layer.a.size() == product(layer.rank, inputs) && layer.b.size() == product(layer.outputs, layer.rank),
        "matrices of ", layer.a.size(), " and ", layer.b.size(), " numbers for rank ", layer.rank, " between ", inputs,
        " inputs and ", layer.outputs, " outputs");
    end = layer.first + layer.outputs;
  }
}

}  // namespace

AdapterWeight::AdapterWeight(int inputs, std::span<const LowRank> layers) : inputs_(inputs) {
  check(inputs, layers);
  int ranks = 0;
  for (const LowRank& layer : layers) ranks += layer.rank;
  ranks_ = rounded_up(ranks, kAdapterRanks);
  const int padded = rounded_up(inputs, kAdapterLanes);
  a_.resize(product(ranks_, padded));
  ranks = 0;
  for (const LowRank& layer : layers) {
    parts_.push_back({layer.first, layer.outputs, ranks, layer.rank, b_.size()});
    for (int k = 0; k < layer.rank; ++k, ++ranks) {
      std::copy_n(layer.a.data() + product(k, inputs), inputs, a_.data() + product(ranks, padded));
    }
    b_.resize(b_.size() + product(rounded_up(layer.outputs, kAdapterLanes), layer.rank));
    float* b = b_.data() + parts_.back().b;
    for (int o = 0; o < layer.outputs; ++o) {
      float* column = b + product(o / kAdapterLanes * layer.rank, kAdapterLanes) + o % kAdapterLanes;
      for (int k = 0; k < layer.rank; ++k) column[k * kAdapterLanes] = layer.b[product(o, layer.rank) + k];
    }
    outputs_ = layer.first + layer.outputs;
  }
}

void AdapterWeight::add(const HeadsView& x, const MutableHeadsView& y, std::span<const std::int32_t> rows) const {
  thread_local std::vector<float> room;
  room.resize(std::max(room.size(), product(kAdapterRows, ranks_)));
  adapter_kernels().add({.a = a_.data(),
                         .b = b_.data(),
                         .inputs = inputs_,
                         .padded = rounded_up(inputs_, kAdapterLanes),
                         .ranks = ranks_,
                         .parts = parts_.data(),
                         .n_parts = static_cast<int>(parts_.size()),
                         .x = x.data,
                         .x_stride = static_cast<std::size_t>(x.token_stride),
                         .y = y.data,
                         .y_stride = static_cast<std::size_t>(y.token_stride),
                         .rows = rows.data(),
                         .n_rows = static_cast<int>(rows.size()),
                         .h = room.data()});
}

const AdapterWeight* Adapter::find(const std::string& weight) const {
  const auto found = weights_.find(weight);
  return found == weights_.end() ? nullptr : &found->second;
}

void AdapterRows::clear() {
  groups_.clear();
  rows_ = 0;
}

void AdapterRows::assign(std::span<const Adapter* const> rows) {
  clear();
  rows_ = rows.size();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r] == nullptr) continue;
    auto group = std::ranges::find(groups_, rows[r], &Group::adapter);
    if (group == groups_.end()) group = groups_.insert(group, {rows[r], {}});
    group->rows.push_back(static_cast<std::int32_t>(r));
  }
}

void add_adapters(const AdapterRows& rows, const std::string& weight, const HeadsView& x, const MutableHeadsView& y,
                  const ParallelFor& parallel_for) {
  struct Task {
    const AdapterWeight* weight;
    std::span<const std::int32_t> rows;
  };
  thread_local std::vector<Task> tasks;
  tasks.clear();
  for (const AdapterRows::Group& group : rows.groups()) {
    const AdapterWeight* found = group.adapter->find(weight);
    if (found == nullptr) continue;
    require<InvalidTensor>(found->inputs() == x.dim && found->outputs() <= y.dim, "an adapter from ", found->inputs(),
                           " inputs to ", found->outputs(), " outputs at a layer from ", x.dim, " to ", y.dim);
    const std::span<const std::int32_t> all(group.rows);
    for (std::size_t at = 0; at < all.size(); at += kAdapterRows) {
      tasks.push_back({found, all.subspan(at, std::min<std::size_t>(kAdapterRows, all.size() - at))});
    }
  }
  if (tasks.empty()) return;
  require<InvalidTensor>(rows.rows() == static_cast<std::size_t>(x.tokens), "adapters of ", rows.rows(),
                         " rows at a layer of ", x.tokens);
  const std::vector<Task>& all = tasks;  // other threads have tasks of their own
  run_tasks(all.size(), parallel_for, [&all, &x, &y](std::size_t i) { all[i].weight->add(x, y, all[i].rows); });
}

}  // namespace agentkv::cpu
