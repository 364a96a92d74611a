// Shared by the bindings of all byte layers: the interface of agentkv_runtime/byte_layer.py over NumPy arrays.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "core/byte_layer.h"
#include "core/cells.h"
#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

namespace nb = nanobind;

using Positions = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Heads = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using CellBytes = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutHeads = nb::ndarray<nb::numpy, float, nb::ndim<3>>;

// Makes a layer over cells; `rest` follows the planner in its constructor.
template <class Layer, class... Rest>
std::shared_ptr<Layer> make_layer(std::shared_ptr<Cells> cells, int n_layers, int n_kv_heads, int head_dim,
                                  std::string kv_dtype, Cell min_chunk, Rest... rest) {
  const CacheConfig config{{.capacity = cells->capacity(),
                            .kv_dtype = std::move(kv_dtype),
                            .min_chunk = min_chunk,
                            .max_sequences = cells->max_sequences()},
                           n_layers,
                           n_kv_heads,
                           head_dim};
  return std::make_shared<Layer>(config, std::move(cells), rest...);
}

using CellArrayTuple = std::tuple<std::string, std::string, std::vector<std::int64_t>, std::optional<int>>;

inline std::vector<CellArrayTuple> tuples_of(const std::vector<CellArray>& described) {
  std::vector<CellArrayTuple> arrays;
  for (const CellArray& array : described) {
    const auto group = array.group == kNoGroup ? std::nullopt : std::optional<int>(array.group);
    arrays.emplace_back(array.name, array.dtype, array.shape, group);
  }
  return arrays;
}

// An array of that shape that `fill(float*)` writes without the GIL.
template <class Fill>
OutHeads filled(std::size_t heads, std::size_t tokens, std::size_t dim, Fill&& fill) {
  std::vector<float> data(heads * tokens * dim);
  {
    nb::gil_scoped_release release;
    fill(data.data());
  }
  return array_of<float>(std::move(data), heads, tokens, dim);
}

inline std::size_t bytes_of(const std::vector<CellArray>& arrays) {
  std::size_t total = 0;
  for (const CellArray& array : arrays) {
    std::size_t numbers = 1;
    for (const std::int64_t size : array.shape) numbers *= static_cast<std::size_t>(size);
    total += numbers * sizeof(float);
  }
  return total;
}

// States that cells have, of anything that has a byte layer.
template <class Class, class LayerOf>
void def_states(Class& holder, LayerOf layer_of) {
  using namespace nb::literals;
  using Holder = typename Class::Type;
  holder
      .def_prop_ro(
          "state_arrays", [=](Holder& self) { return tuples_of(layer_of(self).state_arrays()); },
          "(name, dtype, shape, group) of what a state's bytes are, as cell_arrays; empty where no layer keeps states.")
      .def(
          "with_states",
          [=](Holder& self, const std::vector<Cell>& cells) {
            std::vector<std::int32_t> having;
            for (std::size_t i = 0; i < cells.size(); ++i) {
              if (layer_of(self).has_state(cells[i])) having.push_back(static_cast<std::int32_t>(i));
            }
            return having;
          },
          "cells"_a, "Which of these cells, by their index, have states.")
      .def(
          "read_states",
          [=](Holder& self, const std::vector<Cell>& cells) {
            const ByteLayer& layer = layer_of(self);
            const std::size_t each = bytes_of(layer.state_arrays());
            std::vector<std::byte> bytes(cells.size() * each);
            {
              nb::gil_scoped_release release;
              layer.read_states(cells, bytes);
            }
            return array_of<std::uint8_t>(std::move(bytes), cells.size(), each);
          },
          "cells"_a, "uint8 [n, bytes of a state]: those of these cells. Raises InvalidRange for one that has none.")
      .def(
          "write_states",
          [=](Holder& self, const std::vector<Cell>& cells, const CellBytes& bytes) {
            nb::gil_scoped_release release;
            layer_of(self).write_states(cells, {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
          },
          "cells"_a, "bytes"_a.noconvert(),
          "What read_states gave becomes the states of these cells, which have memory. Raises InvalidRange, "
          "OutOfMemory.");
}

// What whole cells hold, of anything that has a byte layer.
template <class Class, class LayerOf>
void def_cells(Class& holder, LayerOf layer_of) {
  using namespace nb::literals;
  using Holder = typename Class::Type;
  def_states(holder, layer_of);
  holder
      .def_prop_ro(
          "cell_bytes", [=](Holder& self) { return layer_of(self).cell_bytes(); },
          "Bytes that K and V of one cell take, all layers.")
      .def_prop_ro(
          "cell_arrays", [=](Holder& self) { return tuples_of(layer_of(self).cell_arrays()); },
          "(name, dtype, shape, group) of what those bytes are, in their order: `layers.0.k`, as safetensors calls the "
          "dtype, [n_kv_heads, numbers], and the group of layers without which cells may be, or None.")
      .def(
          "read_cells",
          [=](Holder& self, const std::vector<Cell>& cells) {
            const ByteLayer& layer = layer_of(self);
            std::vector<std::byte> bytes(cells.size() * layer.cell_bytes());
            {
              nb::gil_scoped_release release;
              layer.read_cells(cells, bytes);
            }
            return array_of<std::uint8_t>(std::move(bytes), cells.size(), layer.cell_bytes());
          },
          "cells"_a,
          "uint8 [n, cell_bytes]: K and V of these cells, all layers, as they are kept. Raises InvalidRange for a cell "
          "that has no memory.")
      .def(
          "write_cells",
          [=](Holder& self, const std::vector<Cell>& cells, const CellBytes& bytes) {
            ByteLayer& layer = layer_of(self);
            if (bytes.shape(0) != cells.size() || bytes.shape(1) != layer.cell_bytes()) {
              throw InvalidRange(error_text("bytes [", bytes.shape(0), ", ", bytes.shape(1), "] for ", cells.size(),
                                            " cells of ", layer.cell_bytes(), " bytes each"));
            }
            nb::gil_scoped_release release;
            layer.write_cells(cells, {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
          },
          "cells"_a, "bytes"_a.noconvert(),
          "What read_cells gave, of this layer or another of its backend, shape and kv_dtype, back into these cells, "
          "no cell twice. Raises InvalidRange.")
      .def(
          "map_cells",
          [=](Holder& self, Cell first, Cell count, int file, const std::vector<std::int64_t>& offsets) {
            nb::gil_scoped_release release;
            return layer_of(self).map_cells(first, count, {file, offsets});
          },
          "first"_a, "count"_a, "file"_a, "offsets"_a,
          "Cells [first, first + count) become those of an open file (its descriptor), which nobody may change in "
          "place "
          "from then on: row after row from offsets[i] on, for each head of each array of cell_arrays. Its pages are "
          "shared with all who map them, where pages of cells and file agree, until these cells are written; the rest "
          "is copied. Returns how many cells, from the first on, are pages of the file. Raises InvalidRange, also by a "
          "layer whose cells files cannot be mapped into.")
      .def(
          "to_quantized",
          [=](Holder& self, const std::vector<Cell>& cells) {
            nb::gil_scoped_release release;
            layer_of(self).to_quantized(cells);
          },
          "cells"_a,
          "These cells are held in fewer bits until they are written again. Raises InvalidRange, also by a layer that "
          "has no fewer bits for them, and OutOfMemory.")
      .def(
          "shrink", [=](Holder& self, Cell cells) { layer_of(self).shrink(cells); }, "cells"_a,
          "Gives memory above the first `cells` cells back to the system, as far as that is worth it.");
}

// The class of a byte layer; `make` makes it over Cells, `attend` is its update_and_attend.
template <class Layer, class Make, class Attend>
nb::class_<Layer> bind_byte_layer(nb::module_& m, const char* name, const char* doc, const char* init_doc, Make make,
                                  Attend attend) {
  using namespace nb::literals;
  nb::class_<Layer> layer(m, name, doc);
  def_cells(layer, [](Layer& self) -> ByteLayer& { return self; });
  return layer
      .def(nb::new_(make), "cells"_a, "n_layers"_a, "n_kv_heads"_a, "head_dim"_a, "kv_dtype"_a = "fp16",
           "min_chunk"_a = 256, init_doc)
      .def("update_and_attend", attend, "layer"_a, "positions"_a, "q"_a, "k"_a, "v"_a, "scale"_a, "window"_a = 0,
           "sinks"_a = 0,
           "Stores K and V [n_kv_heads, T, head_dim] of the open step's rows and returns attention of q [n_heads, T, "
           "head_dim] over what each row sees, float32 [n_heads, T, head_dim]. positions: int64 [T]. window > 0 hides "
           "positions <= the row's - window, except the first `sinks`. Raises InvalidTensor, InvalidStep, CacheFull.")
      .def(
          "move_cells",
          [](Layer& layer, const std::vector<Cell>& src, const std::vector<Cell>& dst) {
            if (src.size() != dst.size()) {
              throw InvalidRange(error_text(src.size(), " source cells for ", dst.size(), " destinations"));
            }
            nb::gil_scoped_release release;
            layer.move_cells(src.data(), dst.data(), src.size());
          },
          "src"_a, "dst"_a,
          "Copies cell src[i] to dst[i] in every layer, as if all were read first. Raises InvalidRange.")
      .def_prop_ro("bytes", &Layer::bytes, "K and V bytes of memory now, all layers.")
      .def_prop_ro("mapped_bytes", &Layer::mapped_bytes, "K and V bytes that are pages of files, beside `bytes`.")
      .def_prop_ro("allocated_cells", &Layer::allocated_cells, "Cells that have memory now.");
}

}  // namespace agentkv
