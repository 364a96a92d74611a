// Bookkeeping: cells, plans, and what can be seen of the registries.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "core/cache_builders.h"
#include "core/cells.h"
#include "core/contiguous_view.h"
#include "core/registry.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace agentkv {
namespace {

using Int64Array = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using RunTuple = std::tuple<Pos, Cell, Cell>;

std::vector<RunTuple> run_tuples(std::span<const Run> runs) {
  std::vector<RunTuple> out;
  out.reserve(runs.size());
  for (const Run& run : runs) out.emplace_back(run.position, run.cell, run.length);
  return out;
}

nb::ndarray<nb::numpy, bool, nb::ndim<2>> mask(const StepPlan& plan, Pos window, Pos sinks, Pos chunk) {
  return array_of<bool>(plan.mask(window, sinks, chunk), plan.n_tokens(), plan.read_len);
}

void bind_plan(nb::module_& m) {
  auto plan = nb::class_<StepPlan>(m, "StepPlan", "What a byte layer is told about one step; a snapshot.");
  nb::enum_<StepPlan::Kind>(plan, "Kind")
      .value("SingleContiguous", StepPlan::Kind::SingleContiguous)
      .value("Explicit", StepPlan::Kind::Explicit);
  plan.def_ro("kind", &StepPlan::kind)
      .def_ro("read_len", &StepPlan::read_len, "Every visible cell is below it.")
      .def_prop_ro("n_tokens", &StepPlan::n_tokens)
      .def_prop_ro(
          "positions", [](const StepPlan& p) { return copied_array<std::int64_t>(p.positions); },
          nb::rv_policy::automatic, "int64 [n_tokens]: the position of each row's token.")
      .def_prop_ro(
          "write_cells", [](const StepPlan& p) { return copied_array<std::int64_t>(p.write_cells); },
          nb::rv_policy::automatic, "int64 [n_tokens]: the cell each row's K and V go to.")
      .def_prop_ro(
          "row_view", [](const StepPlan& p) { return copied_array<std::int32_t>(p.row_view); },
          nb::rv_policy::automatic, "int32 [n_tokens]: index into `views`.")
      .def_prop_ro(
          "row_limit", [](const StepPlan& p) { return copied_array<std::int64_t>(p.row_limit); },
          nb::rv_policy::automatic, "int64 [n_tokens]: the highest position of its view that a row sees.")
      .def_prop_ro(
          "views",
          [](const StepPlan& p) {
            std::vector<std::vector<RunTuple>> views;
            for (std::int32_t v = 0; v < p.n_views(); ++v) views.push_back(run_tuples(p.view(v)));
            return views;
          },
          "Per view, position-ordered (position, cell, length) runs.")
      .def_prop_ro(
          "tails",
          [](const StepPlan& p) {
            std::vector<std::vector<RunTuple>> tails;
            for (std::int32_t row = 0; row < p.n_tokens(); ++row) tails.push_back(run_tuples(p.tail(row)));
            return tails;
          },
          "Per row, the runs that it sees beyond its view; empty for plain rows.")
      .def_prop_ro(
          "cell_positions", [](const StepPlan& p) { return copied_array<std::int64_t>(p.cell_positions()); },
          nb::rv_policy::automatic, "int64 [read_len]: the position of what each cell holds, 0 where nobody looks.")
      .def("mask", &mask, "window"_a = 0, "sinks"_a = 0, "chunk"_a = 0,
           "bool [n_tokens, read_len], True where visible. window > 0 hides positions <= the row's - window, except "
           "the first `sinks`; chunk > 0 those before the row's chunk of so many positions. Raises InvalidRange for "
           "negative arguments.");
}

void bind_faces(nb::module_& m) {
  nb::class_<Cache>(m, "Cache", "What every cache can say of its cells.")
      .def("can_extend", &Cache::can_extend, "n"_a, "Are n more cells free?")
      .def_prop_ro("capacity", &Cache::capacity)
      .def_prop_ro("used", &Cache::used, "Cells that some sequence owns.")
      .def("clear", &Cache::clear, "Forgets everything. Raises InvalidStep inside a step.");
  nb::class_<SteppedCache, Cache>(m, "SteppedCache", "A cache whose steps are transactions.")
      .def("commit_step", &SteppedCache::commit_step,
           "Publishes the cells and lengths of the open step. Raises InvalidStep unless the step was planned.")
      .def("abort_step", &SteppedCache::abort_step, "Returns every cell of the open step; harmless without one.")
      .def(
          "step_positions", [](const SteppedCache& c) { return copied_array<std::int64_t>(c.step_positions()); },
          "int64 [n_tokens]: the positions that the rows of the open step take; empty without one.");
  nb::class_<ContiguousCache, SteppedCache>(m, "ContiguousCache", "One sequence at the start of its pool.")
      .def("begin_step", &ContiguousCache::begin_step, "n"_a, "Raises CacheFull, InvalidStep.")
      .def("__len__", &ContiguousCache::length)
      .def("rewind", &ContiguousCache::rewind, "length"_a, "Raises InvalidRange unless 0 <= length <= len(self).");
  nb::class_<SeqCache, SteppedCache>(m, "SeqCache", "Sequences that share cells.")
      .def(
          "begin_step", [](SeqCache& c, const std::vector<SeqId>& seq_ids) { c.begin_step(seq_ids); }, "seq_ids"_a,
          "Row i extends sequence seq_ids[i]. Raises CacheFull, UnknownSequence, InvalidStep.")
      .def("seq_cp", &SeqCache::seq_cp, "src"_a, "dst"_a, "p0"_a = 0, "p1"_a = -1,
           "Shares src's cells over [p0, p1) with dst, which must hold none there; p1 < 0 means the end. Raises "
           "UnknownSequence, InvalidRange, InvalidStep.")
      .def("seq_rm", &SeqCache::seq_rm, "seq"_a, "p0"_a = 0, "p1"_a = -1,
           "Drops seq's claim on [p0, p1). Raises UnknownSequence, InvalidRange, InvalidStep.")
      .def("seq_keep", &SeqCache::seq_keep, "seq"_a,
           "Forgets every other sequence. Raises UnknownSequence, InvalidStep.")
      .def("seq_grow", &SeqCache::seq_grow, "seq"_a, "n"_a,
           "Gives seq n more positions, in free cells whose bytes are to be written. Raises CacheFull, InvalidRange, "
           "InvalidStep.")
      .def(
          "seq_grow_run", &SeqCache::seq_grow_run, "seq"_a, "n"_a, "align"_a,
          "The same in cells that lie in a row from a multiple of `align` on, for which it lets go what is retained; "
          "False, and nothing has changed, where no such cells are. Raises UnknownSequence, InvalidRange, InvalidStep.")
      .def("seq_shared", &SeqCache::seq_shared, "seq"_a,
           "One past the last position whose cell has another owner; 0 for none.")
      .def("seq_len", &SeqCache::seq_len, "seq"_a, "One past the last position held; 0 for an empty sequence.")
      .def(
          "seq_runs", [](const SeqCache& c, SeqId seq) { return run_tuples(c.seq_runs(seq)); }, "seq"_a,
          "Position-ordered (position, cell, length) runs.")
      .def_prop_ro("max_sequences", &SeqCache::max_sequences)
      .def_prop_ro("live_sequences", &SeqCache::live_sequences, "Sequences that hold something.")
      .def_prop_ro("retained", &SeqCache::retained, "Cells that no sequence owns and that stay for those to come.")
      .def("set_retention", &SeqCache::set_retention, "most"_a,
           "How many such cells may stay; 0, the default, is none. Raises InvalidRange.")
      .def(
          "seq_retain",
          [](SeqCache& c, SeqId seq, const std::vector<std::int32_t>& tokens) { c.seq_retain(seq, tokens); }, "seq"_a,
          "tokens"_a,
          "Names the tokens at the first positions of seq, whose cells stay from then on. Raises UnknownSequence, "
          "InvalidRange, InvalidStep.")
      .def(
          "seq_recall",
          [](SeqCache& c, SeqId dst, const std::vector<std::int32_t>& tokens) { return c.seq_recall(dst, tokens); },
          "dst"_a, "tokens"_a,
          "Gives dst, which holds the beginning of `tokens` or nothing, the cells of as many tokens behind it as "
          "stayed, "
          "and returns its length then. Raises UnknownSequence, InvalidStep.")
      .def_prop_ro("shared", &SeqCache::shared, "Cells that two sequences or more own.");
  nb::class_<TreeSeqCache, SeqCache>(m, "TreeSeqCache", "A SeqCache whose sequences can have draft nodes.")
      .def(
          "propose",
          [](TreeSeqCache& c, const std::vector<std::int32_t>& parents, SeqId seq) {
            c.propose(parents, static_cast<std::int32_t>(parents.size()), seq);
          },
          "parents"_a, "seq"_a = 0,
          "Proposes draft nodes for the next step that has rows of seq; each parent is the index of an earlier node, "
          "or "
          "-1 for the last committed token. Raises InvalidTree, InvalidStep, UnknownSequence.")
      .def(
          "commit",
          [](TreeSeqCache& c, const std::vector<std::int32_t>& accepted, SeqId seq) {
            c.commit(accepted, static_cast<std::int32_t>(accepted.size()), seq);
          },
          "accepted"_a, "seq"_a = 0,
          "Keeps the accepted chain of nodes, each the parent of the next, and frees the rest of the frontier. Raises "
          "InvalidTree, InvalidStep, UnknownSequence.")
      .def("frontier_size", &TreeSeqCache::frontier_size, "seq"_a, "Draft nodes of seq, proposed ones included.");
}

using Mover = nb::typed<nb::callable, void(std::vector<Cell>, std::vector<Cell>)>;

CellMover mover(Mover move_cells) {
  return [move_cells = std::move(move_cells)](std::span<const Cell> src, std::span<const Cell> dst) {
    const nb::gil_scoped_acquire gil;  // the step loop commits without it
    move_cells(std::vector<Cell>(src.begin(), src.end()), std::vector<Cell>(dst.begin(), dst.end()));
  };
}

void commit(Cells& cells, const std::vector<std::int32_t>& accepted, SeqId seq, std::optional<Mover> move_cells) {
  const struct Restore {
    Cells& cells;
    CellMover mover;
    ~Restore() { cells.set_mover(std::move(mover)); }
  } restore{cells, cells.mover()};
  if (move_cells) cells.set_mover(mover(std::move(*move_cells)));
  cells.commit(accepted, static_cast<std::int32_t>(accepted.size()), seq);
}

void bind_cells(nb::module_& m) {
  nb::class_<Cells, TreeSeqCache>(m, "Cells",
                                  "The bookkeeping: a pool of cells, each owned by any number of sequences.")
      .def(nb::init<Cell, SeqId>(), "capacity"_a, "max_sequences"_a = kDefaultMaxSequences,
           "Raises InvalidRange unless capacity >= 1 and 1 <= max_sequences <= 65535.")
      .def(
          "set_mover",
          [](Cells& cells, std::optional<Mover> move_cells) {
            cells.set_mover(move_cells ? mover(std::move(*move_cells)) : CellMover{});
          },
          "move_cells"_a.none(),
          "What every commit calls to copy cells in the byte layer, move_cells(src, dst), in order. It is held for as "
          "long as the cells are, so a byte layer that leads to them must be held weakly by it.")
      .def(
          "commit", &commit, "accepted"_a, "seq"_a = 0, "move_cells"_a = nb::none(),
          "Keeps the accepted chain of nodes, each the parent of the next, and frees the rest of the frontier. Calls "
          "move_cells in place of set_mover's; without either no cell moves, and the chain stays where it was drafted. "
          "What it raises passes on, and the frontier is then dropped. Raises InvalidTree, InvalidStep, "
          "UnknownSequence.")
      .def(
          "plan", [](Cells& c, const Int64Array& p) { return StepPlan(c.plan({p.data(), p.size()}, 0)); },
          "positions"_a,
          "Plans the open step on the first call and returns the same plan to later ones. positions: int64 [n_tokens], "
          "equal to step_positions(). Raises InvalidStep.")
      .def("plan", [](Cells& c, const std::vector<std::int64_t>& p) { return StepPlan(c.plan(p, 0)); }, "positions"_a);
  nb::class_<ContiguousView, ContiguousCache>(m, "ContiguousView", "Sequence 0 of a cache that nobody else uses.")
      .def(nb::init<std::shared_ptr<TreeSeqCache>>(), "cache"_a);
}

void bind_registries(nb::module_& m) {
  m.def("cache_keys", [] { return CacheRegistry::instance().keys(); }, "Keys of the caches installed now, sorted.");
  m.def(
      "cache_builders", [] { return CacheBuilderRegistry::instance().keys(); },
      "(backend_id, policy) of every cache that can be built, sorted.");
}

}  // namespace
}  // namespace agentkv

void bind_core(nb::module_& m) {
  agentkv::bind_plan(m);
  agentkv::bind_faces(m);
  agentkv::bind_cells(m);
  agentkv::bind_registries(m);
}
