#include "bindings/stored.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/tokens.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace agentkv {
namespace {

using Pieces = nb::ndarray<const Pos, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;
using Groups = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::object pieces_array(const StoredBranch& stored) {
  std::vector<Pos> flat;
  for (const Piece& piece : stored.rows) flat.insert(flat.end(), {piece.from, piece.to, piece.length});
  return nb::cast(array_of<Pos>(std::move(flat), stored.rows.size(), 3));
}

using Forgets = std::vector<std::tuple<Pos, Pos, Pos, bool>>;

Forgets forgotten_of(const StoredBranch& stored) {
  Forgets out;
  for (const Forgotten& gone : stored.forgotten) out.emplace_back(gone.first, gone.last, gone.at, gone.for_room);
  return out;
}

using Spans = std::vector<std::pair<Pos, AdapterId>>;

Spans adapters_of(const StoredBranch& stored) {
  Spans out;
  for (const AdapterSpans::Span& span : stored.adapters.spans()) out.emplace_back(span.from, span.adapter);
  return out;
}

void make_stored(StoredBranch* self, nb::object tokens, const Pieces& rows, std::uint64_t rng_stream,
                 std::uint32_t forks, const Row& next_logits, std::shared_ptr<Constraint> constraint, Pos output_began,
                 Pos output_end, bool output_complete, const Forgets& forgotten, Pos exact_from,
                 const Spans& adapters) {
  new (self) StoredBranch{.log = tokens_of(tokens),
                          .exact_from = exact_from,
                          .rng_stream = rng_stream,
                          .forks = forks,
                          .next_logits = {next_logits.data(), next_logits.data() + next_logits.size()}};
  for (std::size_t i = 0; i < rows.shape(0); ++i) {
    self->rows.push_back({rows.data()[3 * i], rows.data()[3 * i + 1], rows.data()[3 * i + 2]});
  }
  for (const auto& [first, last, at, for_room] : forgotten) self->forgotten.push_back({first, last, at, for_room});
  for (const auto& [from, adapter] : adapters) self->adapters.set(from, adapter);
  if (constraint) self->output = {std::move(constraint), output_began, output_end, output_complete};
}

}  // namespace

void bind_stored_verbs(nb::class_<Engine>& engine) {
  engine
      .def(
          "pin",
          [](Engine& self, const std::vector<BranchId>& branches) {
            auto [pin, images] = self.pinned().take(branches);
            return std::pair{pin, std::move(images)};
          },
          "branches"_a,
          "Every cell of these branches, once each, and the branches as they are now, running jobs or not. The cells "
          "stay until they are unpinned. Raises BranchClosed, TooManyBranches.")
      .def(
          "image", [](Engine& self, BranchId branch) { return self.pinned().image(branch); }, "branch"_a,
          "The branch as it is now, running a job or not, without rows and the logits behind it. Raises BranchClosed.")
      .def(
          "pin_unshared",
          [](Engine& self, const std::vector<BranchId>& branches) { return self.pinned().take_unshared(branches); },
          "branches"_a,
          "The cells at the ends of branches that nobody else has. The branches run nothing, or wait for room. Raises "
          "BranchClosed, BranchBusy, TooManyBranches.")
      .def(
          "reserve", [](Engine& self, Pos rows, Cell align) { return self.pinned().reserve(rows, align); }, "rows"_a,
          "align"_a = 0,
          "So many new cells, to be written; with an `align`, in a row from a multiple of it on if there are such "
          "cells. "
          "Raises ContextFull, TooManyBranches.")
      .def(
          "pinned_cells",
          [](Engine& self, PinId pin, Pos first, Pos count) { return self.pinned().cells(pin, first, count); }, "pin"_a,
          "first"_a, "count"_a,
          "Where rows [first, first + count) of a pin lie now; good until the next verb or step. Raises InvalidRange.")
      .def(
          "pinned_dropped_groups",
          [](Engine& self, PinId pin, Pos first, Pos count) {
            return copied_array<std::uint8_t>(self.pinned().lacks(pin, first, count));
          },
          "pin"_a, "first"_a, "count"_a,
          nb::sig(
              "def pinned_dropped_groups(self, pin: int, first: int, count: int) -> numpy.typing.NDArray[numpy.uint8]"),
          "uint8 [count]: of how many groups of layers rows [first, first + count) of a pin hold nothing. Groups are "
          "layers with the same window, numbered from the shortest on. Raises InvalidRange.")
      .def(
          "discard",
          [](Engine& self, PinId pin, Pos first, const Groups& lacks) {
            self.pinned().discard(pin, first, {lacks.data(), lacks.size()});
          },
          "pin"_a, "first"_a, "lacks"_a,
          "As pinned_dropped_groups gave it, of rows that were written: they hold nothing in these layers from now on. "
          "Raises "
          "InvalidRange.")
      .def(
          "unpin", [](Engine& self, PinId pin) { self.pinned().unpin(pin); }, "pin"_a,
          "Lets the cells go that nobody else has. Idempotent.")
      .def(
          "restore",
          [](Engine& self, std::optional<PinId> pin, const std::vector<StoredBranch>& stored) {
            return self.restore(pin, stored);
          },
          "pin"_a.none(), "stored"_a,
          "New branches over the rows of a pin, or without one where they have no rows; all or none. Raises "
          "TooManyBranches, InvalidToken, "
          "PositionsExhausted, "
          "and InvalidRange for what does not fit together.")
      .def(
          "offload",
          [](Engine& self, const std::vector<BranchId>& branches, PinId pin) { self.offload(branches, pin); },
          "branches"_a, "pin"_a,
          "The branches let go of what pin_unshared() gave, and no verb but close, rollback and adopt works on them "
          "until it is back. Raises BranchClosed, BranchBusy, and InvalidRange where one went on since.")
      .def("reload", &Engine::reload, "branch"_a, "pin"_a.none(),
           "What was offloaded last lies in the rows of this pin now; None: it is lost, and all that was offloaded "
           "before as well, and is computed again. Raises BranchClosed, InvalidRange.")
      .def("n_offloaded", &Engine::n_offloaded, "branch"_a,
           "Number of rows of the last offload that are still to come back. Raises BranchClosed.")
      .def("sharers", &Engine::sharers, "branch"_a,
           "The branches that have its last cell, itself included; none where it has no cell. Raises BranchClosed.")
      .def("rests", &Engine::rests, "branch"_a,
           "Whether the branch runs nothing, or waits for room. Raises BranchClosed.")
      .def("n_running", &Engine::n_running, "Number of jobs that take part in steps.")
      .def("set_stream", &Engine::set_stream, "branch"_a, "rng_stream"_a, "forks"_a,
           "The key of the branch's random numbers, and how many children drew theirs from it. Raises BranchClosed, "
           "BranchBusy.");
}

}  // namespace agentkv

void bind_stored(nb::module_& m) {
  using namespace agentkv;
  nb::class_<PinnedCells::Pin>(m, "Pin", "Cells that stay until they are unpinned.")
      .def_ro("id", &PinnedCells::Pin::id)
      .def_ro("rows", &PinnedCells::Pin::rows);
  nb::class_<StoredBranch>(m, "StoredBranch", "A branch as it is kept outside of the cache.")
      .def("__init__", &make_stored, "tokens"_a, "rows"_a, nb::kw_only(), "rng_stream"_a, "forks"_a, "next_logits"_a,
           "constraint"_a = nb::none(), "output_began"_a = 0, "output_end"_a = 0, "output_complete"_a = false,
           "forgotten"_a = Forgets{}, "exact_from"_a = 0, "adapters"_a = Spans{},
           nb::sig("def __init__(self, tokens: collections.abc.Iterable[int], rows: "
                   "numpy.typing.NDArray[numpy.int32], *, rng_stream: int, forks: int, next_logits: "
                   "numpy.typing.NDArray[numpy.float32], constraint: Constraint | None = None, output_began: int = 0, "
                   "output_end: int = 0, output_complete: bool = False, forgotten: "
                   "collections.abc.Sequence[tuple[int, int, int, bool]] = [], exact_from: int = 0, adapters: "
                   "collections.abc.Sequence[tuple[int, int]] = []) -> None"))
      .def_prop_ro(
          "tokens", [](const StoredBranch& s) { return copied_array<Token>(s.log); }, nb::rv_policy::automatic,
          "int32 [length].")
      .def_prop_ro("rows", &pieces_array, nb::sig("def rows(self) -> numpy.typing.NDArray[numpy.int32]"),
                   "int32 [n, 3]: from which row of the pin, to which position, how many. What they "
                   "do not cover is fed again.")
      .def_prop_ro("forgotten", &forgotten_of,
                   "(first, last, at, for_room): positions [first, last) were forgotten when there were `at` tokens; "
                   "for_room: no "
                   "rollback takes it back.")
      .def_prop_ro("adapters", &adapters_of, "(position, adapter): tokens from there on have it, up to the next.")
      .def_ro("exact_from", &StoredBranch::exact_from,
              "Rows of earlier positions serve no rollback: they were computed without all that they should see.")
      .def_ro("rng_stream", &StoredBranch::rng_stream)
      .def_ro("forks", &StoredBranch::forks)
      .def_prop_ro(
          "next_logits", [](const StoredBranch& s) { return copied_array<float>(s.next_logits); },
          nb::rv_policy::automatic, "float32 [vocab_size] after the tokens; [0] where they are not known.")
      .def_prop_ro(
          "constraint", [](const StoredBranch& s) { return s.output.constraint; },
          nb::sig("def constraint(self) -> Constraint | None"), "Of the last output; None for none.")
      .def_prop_ro("output_began", [](const StoredBranch& s) { return s.output.began; })
      .def_prop_ro("output_end", [](const StoredBranch& s) { return s.output.end; })
      .def_prop_ro("output_complete", [](const StoredBranch& s) { return s.output.complete; });
}
