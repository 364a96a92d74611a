// The part of a byte layer that the core can see. Backends derive from it and add tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/api.h"
#include "core/types.h"

namespace agentkv {

// The choices of the caller for one cache.
struct CacheOptions {
  Cell capacity = 0;
  std::string kv_dtype = "fp16";
  Cell min_chunk = 256;  // first allocation in cells; doubles up to capacity
  SeqId max_sequences = kDefaultMaxSequences;
  std::string policy = "full";  // which positions stay cached, see cache_builders.h
  // No layer looks further back than `window` positions, a row's own among them, the first `sinks` apart (StreamingLLM,
  // Xiao et al. 2023); 0: as far as the program's own windows. A layer whose own window is shorter keeps that.
  Pos window = 0;
  Pos sinks = 0;
};

// How far back rows of one layer look: as far as both allow.
struct Sight {
  Pos window = 0;  // positions, the row's own among them, the first `sinks` apart; 0: all
  Pos sinks = 0;
  Pos chunk = 0;  // from the start of the row's chunk of so many positions on (Llama 4); 0: all

  bool operator==(const Sight&) const = default;
};

// The group of each layer: layers with the same window are one, numbered from the shortest window on. A layer without
// one is in kNoGroup.
inline constexpr std::uint8_t kNoGroup = 255;
AGENTKV_API std::vector<std::uint8_t> layer_groups(std::span<const Pos> windows);

// Of a layer with this window of its own, or 0, in a cache with these options.
inline Sight narrower(Sight layer, Sight cache) {
  const bool by_cache = cache.window > 0 && (layer.window == 0 || layer.window > cache.window);
  return by_cache ? Sight{cache.window, cache.sinks, layer.chunk} : layer;
}

enum class Kept : std::uint8_t {
  KeysAndValues = 0,
  // Values are the first v_dim numbers of keys, and kept with them: the latent of multi-head latent attention
  // (DeepSeek-V2, 2024).
  Latent = 1,
  // Keys and values of linear attention, as far as the layer's window, and states [n_kv_heads v_heads, k_dim, v_dim];
  // float32. What fades is a head of values.
  Linear = 2,
  // What a convolution has as its input, as keys alone; float32.
  Inputs = 3,
  // As Linear, but each number of a key fades by itself.
  GatedLinear = 4,
  // What a selective scan of v_dim channels adds to its states [k_dim, v_dim], as far as the layer's window; float32.
  Scan = 5,
};
inline constexpr int kMostKept = 5;

// What one layer keeps of a token.
struct LayerShape {
  int n_kv_heads = 0;
  int k_dim = 0;
  int v_dim = 0;
  Kept kept = Kept::KeysAndValues;
  int v_heads = 1;  // heads of values for each of keys, in linear attention

  bool has_values() const { return kept != Kept::Latent && kept != Kept::Inputs; }
  bool has_states() const { return kept == Kept::Linear || kept == Kept::GatedLinear || kept == Kept::Scan; }
  bool in_float32() const { return has_states() || kept == Kept::Inputs; }
  // Numbers of one state; 0 where there are none.
  std::size_t state_floats() const {
    if (!has_states()) return 0;
    return static_cast<std::size_t>(n_kv_heads) * static_cast<std::size_t>(v_heads) * static_cast<std::size_t>(k_dim) *
           static_cast<std::size_t>(v_dim);
  }

  bool operator==(const LayerShape&) const = default;
};

// The same, with what the program says of its layers.
struct CacheConfig : CacheOptions {
  int n_layers = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  std::vector<Pos> windows = {};        // of the program's layers, 0 for none; empty where no layer has one
  std::vector<LayerShape> shapes = {};  // of the program's layers; empty where all are [n_kv_heads, head_dim]

  LayerShape shape(int layer) const {
    return shapes.empty() ? LayerShape{n_kv_heads, head_dim, head_dim} : shapes[static_cast<std::size_t>(layer)];
  }

  void check() const;  // throws InvalidTensor unless each of these, capacity and min_chunk are at least 1
};

// One array of what a cell holds, such as the keys of a layer.
struct CellArray {
  std::string name;                 // "layers.0.k"; of quantised ones "layers.0.k.codes", ".scales" ...
  std::string dtype;                // as safetensors calls it: "F16"
  std::vector<std::int64_t> shape;  // of one cell: [n_kv_heads, numbers]
  std::uint8_t group = kNoGroup;    // of its layer, where cells may lack it: see discard()
};

// Rows of cells in an open file, lane by lane: a lane is one array of one head, in the order of cell_arrays() and of
// heads, and its rows lie one behind the other from its offset on.
struct FileLanes {
  int fd = -1;
  std::span<const std::int64_t> offsets;  // in bytes, of each lane
};

class AGENTKV_API ByteLayer {
 public:
  virtual ~ByteLayer() = default;
  virtual std::string_view backend_id() const = 0;
  virtual std::size_t bytes() const = 0;  // K and V bytes of memory now, all layers
  virtual Cell allocated_cells() const = 0;
  // Copies cell src[i] to dst[i] in every layer (compaction after a draft tree was accepted).
  virtual void move_cells(const Cell* src, const Cell* dst, std::size_t n) = 0;
  // These allocated cells are held in fewer bits from now on, until they are written again; for those that are already,
  // nothing happens. read_cells gives what they stand for then. Throws InvalidRange by a layer that has no fewer bits
  // for them, and for other cells; OutOfMemory.
  virtual void to_quantized(std::span<const Cell> cells);
  // The layers of the first `groups` groups (SeqCache::seq_discard) of these allocated cells hold nothing of worth
  // until the cells are written again: their memory may be given back. A layer that cannot do that keeps them.
  virtual void discard(std::span<const Cell>, std::uint8_t) {}
  // Nothing is in use above the first `cells` cells: their states are gone, and their memory is given back to the
  // system, as far as that is worth it.
  virtual void shrink(Cell) noexcept {}

  // K and V of cells as they are kept, for saving and for bringing back: cell_bytes() for each, all layers, in an order
  // that caches of the same backend, shape and kv_dtype share. Throw InvalidRange, before anything changes, for a cell
  // outside the allocated ones (reading) or the capacity (writing, which allocates), and for `bytes` of another size.
  virtual std::size_t cell_bytes() const = 0;
  virtual std::vector<CellArray> cell_arrays() const = 0;  // what those bytes are, in their order
  virtual void read_cells(std::span<const Cell> cells, std::span<std::byte> bytes) const = 0;
  virtual void write_cells(std::span<const Cell> cells, std::span<const std::byte> bytes) = 0;
  // Cells [first, first + count) become those of a file, which nobody may change in place from then on. Its pages are
  // shared with all who map them, as far as pages of cells and of the file agree; the rest is copied. Cells that are
  // written later are this layer's own again. Returns how many cells, from the first on, are pages of the file. Throws
  // InvalidRange, before anything changes, for cells outside the capacity, for lanes that are not this layer's or not
  // in the file, and by a layer whose cells files cannot be mapped into.
  virtual Cell map_cells(Cell first, Cell count, const FileLanes& file);
  // States, which layers have at some of their cells: all that a cell has, in the order of state_arrays(). Throw as
  // read_cells and write_cells do, reading also for a cell that has none.
  virtual std::vector<CellArray> state_arrays() const { return {}; }
  virtual bool has_state(Cell) const { return false; }  // that stays as long as the cell does
  virtual std::size_t states() const { return 0; }      // kept now, in each layer that has some
  virtual void read_states(std::span<const Cell> cells, std::span<std::byte> bytes) const;
  virtual void write_states(std::span<const Cell> cells, std::span<const std::byte> bytes);
  virtual std::size_t mapped_bytes() const { return 0; }  // K and V bytes that are pages of files, beside bytes()

 protected:
  // What read_cells and write_cells check: cells in [0, end), and room for each, or for so many bytes each.
  void check_cells(std::span<const Cell> cells, Cell end, std::size_t n_bytes) const;
  static void check_cells(std::span<const Cell> cells, Cell end, std::size_t n_bytes, std::size_t each);
  // What move_cells checks: cells in [0, end).
  static void check_moves(const Cell* src, const Cell* dst, std::size_t n, Cell end);
};

}  // namespace agentkv
