"""
Native core of agentkv: bookkeeping, byte layers, step loop, ExecuTorch programs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import enum
from typing import Annotated, Any, Literal, overload

import numpy
import numpy.typing
from numpy.typing import NDArray


def mlx_version() -> str | None:
    """
    The version of mlx that the MLX backend was built with; None where it was built without.
    """

class Error(RuntimeError):
    """Base of the errors of the native module."""

class CacheFull(Error):
    """The pool has fewer free cells than a step needs."""

class OutOfMemory(Error):
    """The system refused memory for keys and values; the cache is as it was."""

class UnknownSequence(Error):
    """A sequence id that is out of range or holds nothing."""

class InvalidRange(Error):
    """Positions outside what a sequence holds, or a length it never had."""

class InvalidStep(Error):
    """
    A step verb out of order: a second begin, forward without begin, early commit.
    """

class InvalidTree(Error):
    """
    A draft tree whose parent does not come earlier, or accepted nodes in no chain.
    """

class InvalidTensor(Error):
    """Shapes, dtypes or layer ids that do not fit the cache."""

class RegistryError(Error):
    """No cache under a key, an unknown backend or policy, a key taken twice."""

class ProgramError(Error):
    """
    A program file that is missing, damaged, foreign, or of an unknown schema.
    """

class ForwardFailed(Error):
    """
    A forward that was started and failed; the cache is as it was before the step.
    """

class StepFailed(Error):
    """
    A job ended because its part of a step failed; its branch is as before the step.
    """

class BranchBusy(Error):
    """A verb on a branch whose job still runs."""

class BranchClosed(Error):
    """A branch that was closed, or an id that no branch ever had."""

class TooManyBranches(Error):
    """More live branches than the engine was built for."""

class EmptyBranch(Error):
    """Logits of a branch that holds no token."""

class ContextFull(Error):
    """The cache has fewer free cells than the job needs."""

class PositionsExhausted(Error):
    """More tokens than the model has positions."""

class InvalidRollback(Error, ValueError):
    """A length that the branch never had."""

class InvalidToken(Error, ValueError):
    """A token id outside the vocabulary."""

class InvalidSampling(Error, ValueError):
    """
    A sampling parameter, a token limit or a stop string outside its range.
    """

class InvalidChoices(Error, ValueError):
    """Choices that cannot be scored: none at all, or one without tokens."""

class InvalidEngine(Error, ValueError):
    """Engine arguments that do not fit together."""

class InvalidDraft(Error, ValueError):
    """A draft that is no tree of tokens in the vocabulary."""

class InvalidDrafter(Error, ValueError):
    """Options of a drafter outside their range."""

class StepPlan:
    """What a byte layer is told about one step; a snapshot."""

    class Kind(enum.Enum):
        SingleContiguous = 0

        Explicit = 1

    @property
    def kind(self) -> StepPlan.Kind: ...

    @property
    def read_len(self) -> int:
        """Every visible cell is below it."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def positions(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """int64 [n_tokens]: the position of each row's token."""

    @property
    def write_cells(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """int64 [n_tokens]: the cell each row's K and V go to."""

    @property
    def row_view(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """int32 [n_tokens]: index into `views`."""

    @property
    def row_limit(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """int64 [n_tokens]: the highest position of its view that a row sees."""

    @property
    def views(self) -> list[list[tuple[int, int, int]]]:
        """Per view, position-ordered (position, cell, length) runs."""

    @property
    def tails(self) -> list[list[tuple[int, int, int]]]:
        """Per row, the runs that it sees beyond its view; empty for plain rows."""

    @property
    def cell_positions(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """
        int64 [read_len]: the position of what each cell holds, 0 where nobody looks.
        """

    def mask(self, window: int = 0, sinks: int = 0, chunk: int = 0) -> Annotated[NDArray[numpy.bool_], dict(shape=(None, None))]:
        """
        bool [n_tokens, read_len], True where visible. window > 0 hides positions <= the row's - window, except the first `sinks`; chunk > 0 those before the row's chunk of so many positions. Raises InvalidRange for negative arguments.
        """

class Cache:
    """What every cache can say of its cells."""

    def can_extend(self, n: int) -> bool:
        """Are n more cells free?"""

    @property
    def capacity(self) -> int: ...

    @property
    def used(self) -> int:
        """Cells that some sequence owns."""

    def clear(self) -> None:
        """Forgets everything. Raises InvalidStep inside a step."""

class SteppedCache(Cache):
    """A cache whose steps are transactions."""

    def commit_step(self) -> None:
        """
        Publishes the cells and lengths of the open step. Raises InvalidStep unless the step was planned.
        """

    def abort_step(self) -> None:
        """Returns every cell of the open step; harmless without one."""

    def step_positions(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """
        int64 [n_tokens]: the positions that the rows of the open step take; empty without one.
        """

class ContiguousCache(SteppedCache):
    """One sequence at the start of its pool."""

    def begin_step(self, n: int) -> None:
        """Raises CacheFull, InvalidStep."""

    def __len__(self) -> int: ...

    def rewind(self, length: int) -> None:
        """Raises InvalidRange unless 0 <= length <= len(self)."""

class SeqCache(SteppedCache):
    """Sequences that share cells."""

    def begin_step(self, seq_ids: Sequence[int]) -> None:
        """
        Row i extends sequence seq_ids[i]. Raises CacheFull, UnknownSequence, InvalidStep.
        """

    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        """
        Shares src's cells over [p0, p1) with dst, which must hold none there; p1 < 0 means the end. Raises UnknownSequence, InvalidRange, InvalidStep.
        """

    def seq_rm(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """
        Drops seq's claim on [p0, p1). Raises UnknownSequence, InvalidRange, InvalidStep.
        """

    def seq_keep(self, seq: int) -> None:
        """Forgets every other sequence. Raises UnknownSequence, InvalidStep."""

    def seq_grow(self, seq: int, n: int) -> None:
        """
        Gives seq n more positions, in free cells whose bytes are to be written. Raises CacheFull, InvalidRange, InvalidStep.
        """

    def seq_grow_run(self, seq: int, n: int, align: int) -> bool:
        """
        The same in cells that lie in a row from a multiple of `align` on, for which it lets go what is retained; False, and nothing has changed, where no such cells are. Raises UnknownSequence, InvalidRange, InvalidStep.
        """

    def seq_shared(self, seq: int) -> int:
        """One past the last position whose cell has another owner; 0 for none."""

    def seq_len(self, seq: int) -> int:
        """One past the last position held; 0 for an empty sequence."""

    def seq_runs(self, seq: int) -> list[tuple[int, int, int]]:
        """Position-ordered (position, cell, length) runs."""

    @property
    def max_sequences(self) -> int: ...

    @property
    def live_sequences(self) -> int:
        """Sequences that hold something."""

    @property
    def retained(self) -> int:
        """Cells that no sequence owns and that stay for those to come."""

    def set_retention(self, most: int) -> None:
        """
        How many such cells may stay; 0, the default, is none. Raises InvalidRange.
        """

    def seq_retain(self, seq: int, tokens: Sequence[int]) -> None:
        """
        Names the tokens at the first positions of seq, whose cells stay from then on. Raises UnknownSequence, InvalidRange, InvalidStep.
        """

    def seq_recall(self, dst: int, tokens: Sequence[int]) -> int:
        """
        Gives dst, which holds the beginning of `tokens` or nothing, the cells of as many tokens behind it as stayed, and returns its length then. Raises UnknownSequence, InvalidStep.
        """

    @property
    def shared(self) -> int:
        """Cells that two sequences or more own."""

class TreeSeqCache(SeqCache):
    """A SeqCache whose sequences can have draft nodes."""

    def propose(self, parents: Sequence[int], seq: int = 0) -> None:
        """
        Proposes draft nodes for the next step that has rows of seq; each parent is the index of an earlier node, or -1 for the last committed token. Raises InvalidTree, InvalidStep, UnknownSequence.
        """

    def commit(self, accepted: Sequence[int], seq: int = 0) -> None:
        """
        Keeps the accepted chain of nodes, each the parent of the next, and frees the rest of the frontier. Raises InvalidTree, InvalidStep, UnknownSequence.
        """

    def frontier_size(self, seq: int) -> int:
        """Draft nodes of seq, proposed ones included."""

class Cells(TreeSeqCache):
    """
    The bookkeeping: a pool of cells, each owned by any number of sequences.
    """

    def __init__(self, capacity: int, max_sequences: int = 256) -> None:
        """
        Raises InvalidRange unless capacity >= 1 and 1 <= max_sequences <= 65535.
        """

    def set_mover(self, move_cells: Callable[[Sequence[int], Sequence[int]], None] | None) -> None:
        """
        What every commit calls to copy cells in the byte layer, move_cells(src, dst), in order. It is held for as long as the cells are, so a byte layer that leads to them must be held weakly by it.
        """

    def commit(self, accepted: Sequence[int], seq: int = 0, move_cells: Callable[[Sequence[int], Sequence[int]], None] | None = None) -> None:
        """
        Keeps the accepted chain of nodes, each the parent of the next, and frees the rest of the frontier. Calls move_cells in place of set_mover's; without either no cell moves, and the chain stays where it was drafted. What it raises passes on, and the frontier is then dropped. Raises InvalidTree, InvalidStep, UnknownSequence.
        """

    @overload
    def plan(self, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> StepPlan:
        """
        Plans the open step on the first call and returns the same plan to later ones. positions: int64 [n_tokens], equal to step_positions(). Raises InvalidStep.
        """

    @overload
    def plan(self, positions: Sequence[int]) -> StepPlan: ...

class ContiguousView(ContiguousCache):
    """Sequence 0 of a cache that nobody else uses."""

    def __init__(self, cache: TreeSeqCache) -> None: ...

def cache_keys() -> list[str]:
    """Keys of the caches installed now, sorted."""

def cache_builders() -> list[tuple[str, str]]:
    """(backend_id, policy) of every cache that can be built, sorted."""

def failing_caches(on: bool) -> None:
    """
    A test aid: caches made from now on are such that fail_at works on, or no longer.
    """

def fail_at(cache: TreeSeqCache, layer: int, after_forwards: int = 0) -> None:
    """
    A test aid: the forward after the next `after_forwards` ones fails before `layer` is written. Once. Raises InvalidStep for a cache made without failing_caches, InvalidRange.
    """

class CpuCache:
    """
    K and V pools in host memory, and attention over the plans of a bookkeeping.
    """

    def __init__(self, cells: Cells, n_layers: int, n_kv_heads: int, head_dim: int, kv_dtype: str = 'fp16', min_chunk: int = 256) -> None:
        """
        head_dim: a multiple of 8 up to 2048; kv_dtype: "fp32", "fp16", "bf16", "int8", "int4" or "int8/int4" (keys, values). Raises InvalidTensor.
        """

    @property
    def state_arrays(self) -> list[tuple[str, str, list[int], int | None]]:
        """
        (name, dtype, shape, group) of what a state's bytes are, as cell_arrays; empty where no layer keeps states.
        """

    def with_states(self, cells: Sequence[int]) -> list[int]:
        """Which of these cells, by their index, have states."""

    def read_states(self, cells: Sequence[int]) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None))]:
        """
        uint8 [n, bytes of a state]: those of these cells. Raises InvalidRange for one that has none.
        """

    def write_states(self, cells: Sequence[int], bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        What read_states gave becomes the states of these cells, which have memory. Raises InvalidRange, OutOfMemory.
        """

    @property
    def cell_bytes(self) -> int:
        """Bytes that K and V of one cell take, all layers."""

    @property
    def cell_arrays(self) -> list[tuple[str, str, list[int], int | None]]:
        """
        (name, dtype, shape, group) of what those bytes are, in their order: `layers.0.k`, as safetensors calls the dtype, [n_kv_heads, numbers], and the group of layers without which cells may be, or None.
        """

    def read_cells(self, cells: Sequence[int]) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None))]:
        """
        uint8 [n, cell_bytes]: K and V of these cells, all layers, as they are kept. Raises InvalidRange for a cell that has no memory.
        """

    def write_cells(self, cells: Sequence[int], bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        What read_cells gave, of this layer or another of its backend, shape and kv_dtype, back into these cells, no cell twice. Raises InvalidRange.
        """

    def map_cells(self, first: int, count: int, file: int, offsets: Sequence[int]) -> int:
        """
        Cells [first, first + count) become those of an open file (its descriptor), which nobody may change in place from then on: row after row from offsets[i] on, for each head of each array of cell_arrays. Its pages are shared with all who map them, where pages of cells and file agree, until these cells are written; the rest is copied. Returns how many cells, from the first on, are pages of the file. Raises InvalidRange, also by a layer whose cells files cannot be mapped into.
        """

    def to_quantized(self, cells: Sequence[int]) -> None:
        """
        These cells are held in fewer bits until they are written again. Raises InvalidRange, also by a layer that has no fewer bits for them, and OutOfMemory.
        """

    def shrink(self, cells: int) -> None:
        """
        Gives memory above the first `cells` cells back to the system, as far as that is worth it.
        """

    def update_and_attend(self, layer: int, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], q: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], k: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], v: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], scale: float, window: int = 0, sinks: int = 0) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None, None))]:
        """
        Stores K and V [n_kv_heads, T, head_dim] of the open step's rows and returns attention of q [n_heads, T, head_dim] over what each row sees, float32 [n_heads, T, head_dim]. positions: int64 [T]. window > 0 hides positions <= the row's - window, except the first `sinks`. Raises InvalidTensor, InvalidStep, CacheFull.
        """

    def move_cells(self, src: Sequence[int], dst: Sequence[int]) -> None:
        """
        Copies cell src[i] to dst[i] in every layer, as if all were read first. Raises InvalidRange.
        """

    @property
    def bytes(self) -> int:
        """K and V bytes of memory now, all layers."""

    @property
    def mapped_bytes(self) -> int:
        """K and V bytes that are pages of files, beside `bytes`."""

    @property
    def allocated_cells(self) -> int:
        """Cells that have memory now."""

def cpu_isas() -> list[str]:
    """
    Instruction sets that this build and this machine both have, best first.
    """

def get_cpu_isa() -> str:
    """The instruction set in use."""

def set_cpu_isa(isa: str) -> None:
    """
    Uses another of cpu_isas() from now on; the environment variable AGENTKV_CPU_ISA sets the first. Raises InvalidTensor.
    """

def pack_linear(codes: Annotated[NDArray[numpy.int8], dict(shape=(None, None), order='C', device='cpu', writable=False)], scales: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], bits: int) -> bytes:
    """
    Weights of a linear layer as the CPU's kernels read them: codes int8 [O, I] of 4 or 8 bits, scales float32 [O, I / group], with 4 bits in groups of 32, 64 or 128, with 8 one for each output. Raises InvalidTensor.
    """

def pack_floats(weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> bytes:
    """
    Weights of a linear layer that stay float32, as the CPU's kernels read them: weights float32 [O, I]. Raises InvalidTensor.
    """

def pack_blocks(rows: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], type: int) -> bytes:
    """
    Weights in the blocks of a GGUF file as the CPU's kernels read them: rows uint8 [O, bytes of a row], type the id that GGUF has for it. Raises InvalidTensor.
    """

def unpack_blocks(rows: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], type: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C')]:
    """
    What such rows stand for, float32 [O, I], read back from the CPU's layout. Raises InvalidTensor.
    """

def quantize_blocks(numbers: numpy.typing.NDArray[Any], type: int, importance: numpy.typing.NDArray[numpy.float32] | None = None) -> tuple[numpy.typing.NDArray[numpy.uint8], float, float]:
    """
    Weights as blocks, made well: numbers [O, I] of float32, float16, or bfloat16 as uint16; type the id that GGUF has for the blocks; importance [I] what the square of an error at each input counts. Returns the rows [O, bytes of a row], the squares of their errors, and those of the numbers, summed. The same bits on any number of threads. Raises InvalidTensor.
    """

def block_types() -> list[tuple[int, str, int, int]]:
    """
    The block types that linear layers run as they are: (id, name, inputs of a block, bytes of a block) of each.
    """

class ModelRunner:
    """One forward over the rows of its cache's open step."""

    @property
    def vocab_size(self) -> int:
        """Logits per row."""

    @property
    def max_tokens(self) -> int:
        """Rows that one forward takes at most."""

    @property
    def max_logits(self) -> int:
        """Logits rows that one forward returns at most."""

    @property
    def feature_dim(self) -> int:
        """Features per row; 0 for none."""

    def features(self) -> numpy.typing.NDArray[numpy.float32]:
        """
        float32 [T, feature_dim] of the last forward, a copy; [0, 0] where feature_dim is 0.
        """

    def forward(self, tokens: numpy.typing.NDArray[numpy.int64], positions: numpy.typing.NDArray[numpy.int64], logits_indices: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.float32]:
        """
        tokens [T], positions [T], logits_indices [N]: int64. Returns float32 [N, vocab_size] of those rows. Raises ForwardFailed; abort the step then.
        """

class LogChange:
    """How a branch's tokens differ from what was last told of them."""

    @property
    def branch(self) -> int: ...

    @property
    def kept(self) -> int:
        """Tokens at the front that stay."""

    @property
    def appended(self) -> bytes:
        """What follows them now: int32, in the machine's byte order."""

    @property
    def epoch(self) -> int:
        """Of the last token, as `Engine.end` says."""

    @property
    def adapter(self) -> int:
        """Of the next token; 0 for none."""

class Emitted:
    """One token of a generation that was started with emit=True."""

    @property
    def job(self) -> int: ...

    @property
    def token(self) -> int: ...

    @property
    def logprob(self) -> float:
        """Under the model's own distribution, before any sampling filter."""

    @property
    def text(self) -> bytes:
        """
        Bytes that may be shown now. Bytes that may begin a stop string are held back; the last token of a generation that ends by itself releases them.
        """

    @property
    def top_logprobs(self) -> list[tuple[int, float]]:
        """
        (token, logprob) of the likeliest tokens in its place, as many as were asked for, best first.
        """

class Finished:
    """The end of a job. Its kind says which fields are filled."""

    @property
    def job(self) -> int: ...

    @property
    def kind(self) -> Literal['extend', 'generate', 'logits', 'select']: ...

    @property
    def error(self) -> Error | None:
        """
        ContextFull or StepFailed, not raised, when the job failed. The branch is as it was before the failed step; an extend is undone as a whole.
        """

    @property
    def finish_reason(self) -> Literal['eos', 'stop', 'length', 'context_full', 'cancelled'] | None:
        """
        Why a generation ended; "cancelled" for a cancelled job of any kind; else None.
        """

    @property
    def seconds(self) -> float:
        """That the job took."""

    @property
    def first_token_seconds(self) -> float:
        """
        generate: of these, until the first token was there; 0 where none came.
        """

    @property
    def tokens(self) -> list[int]:
        """generate: the tokens added to the branch, also when it failed."""

    @property
    def logprobs(self) -> list[float]:
        """generate: one per token, under the model's own distribution."""

    @property
    def top_logprobs(self) -> list[list[tuple[int, float]]]:
        """
        generate: per token, (token, logprob) of the likeliest in its place, best first; empty if not asked for.
        """

    @property
    def text(self) -> bytes:
        """
        generate: the tokens' bytes without special tokens, cut before the stop string.
        """

    @property
    def prompt_tokens(self) -> int:
        """generate: the branch's length when it began."""

    @property
    def output_began(self) -> int:
        """
        generate, under a constraint: where in the branch its output begins; -1 without.
        """

    @property
    def digests(self) -> bytes:
        """
        generate: per token, a hash of the row of logits that it was drawn from; uint64, in the machine's byte order. Empty unless `Engine.set_digests` asked for them before.
        """

    @property
    def logits(self) -> numpy.typing.NDArray[numpy.float32] | None:
        """logits: float32 [vocab_size]."""

    @property
    def scores(self) -> list[float]:
        """select: per choice, the sum of its tokens' log-probabilities."""

class Stats:
    """
    A snapshot of what an engine has done and holds; `agentkv.Stats` says what each counter means.
    """

    @property
    def steps(self) -> int: ...

    @property
    def forwards(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def prefilled(self) -> int: ...

    @property
    def refed(self) -> int: ...

    @property
    def generated(self) -> int: ...

    @property
    def reused(self) -> int: ...

    @property
    def recalled(self) -> int: ...

    @property
    def drafted(self) -> int: ...

    @property
    def accepted(self) -> int: ...

    @property
    def forced(self) -> int: ...

    @property
    def retries(self) -> int: ...

    @property
    def draft_rounds(self) -> int: ...

    @property
    def draft_seconds(self) -> float: ...

    @property
    def constraint_seconds(self) -> float: ...

    @property
    def mask_seconds(self) -> float: ...

    @property
    def forward_seconds(self) -> float: ...

    @property
    def overhead_seconds(self) -> float: ...

    @property
    def rows_per_step(self) -> list[int]: ...

    @property
    def branches(self) -> int: ...

    @property
    def cells_used(self) -> int: ...

    @property
    def cells_shared(self) -> int: ...

    @property
    def cells_retained(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def draft_bytes(self) -> int: ...

class StepReport:
    """What one step did."""

    @property
    def idle(self) -> bool:
        """Nothing was runnable and nothing is reported: wait for a new job."""

    @property
    def rows(self) -> int:
        """Tokens fed."""

    @property
    def decode_rows(self) -> int: ...

    @property
    def prefill_rows(self) -> int: ...

    @property
    def branches(self) -> int:
        """Branches that had rows in the step."""

    @property
    def forwards(self) -> int:
        """
        1, or more where the rows exceed what the program takes or a failed forward was retried.
        """

    @property
    def shares(self) -> bytes:
        """
        What each branch had in it: (int64 branch, int32 kind, rows, drafted, accepted), in the machine's byte order. Kind 0 is prefill, 1 decoding, 2 tokens whose cells had been let go. Of `rows`, `drafted` were draft nodes, of which `accepted` came true.
        """

    @property
    def seconds(self) -> float:
        """That the step took."""

    @property
    def forward_seconds(self) -> float:
        """Of these, inside the program."""

    @property
    def draft_seconds(self) -> float:
        """Of these, inside drafters."""

    @property
    def emitted(self) -> list[Emitted]: ...

    @property
    def finished(self) -> list[Finished]:
        """Jobs that ended in this step, or between it and the one before."""

    @property
    def out_of_room(self) -> list[int]:
        """
        Generations with wait_for_room that wait from now on, for Engine.resume.
        """

class AcceptanceRates:
    """How often the target accepts what a drafter proposes."""

    def __init__(self, levels: Sequence[float] = [], calibration: Sequence[float] = []) -> None:
        """
        levels: rate of each level of a draft where the levels above it were accepted, 16 at most. calibration: rate of nodes whose parent was accepted, by their confidence, in 16 bins of equal width over [0, 1]. What is left out is guessed.
        """

    @property
    def levels(self) -> list[float]: ...

    @property
    def calibration(self) -> list[float]: ...

class Drafter:
    """Guesses the tokens that branches continue with. Belongs to one engine."""

    @property
    def adaptive(self) -> bool:
        """
        Whether drafts follow what they have cost and brought; without, as much is drafted and verified as there is room.
        """

    @adaptive.setter
    def adaptive(self, arg: bool, /) -> None: ...

    @property
    def prior(self) -> AcceptanceRates:
        """
        What acceptance to expect before any draft was verified; read when the drafter is attached.
        """

    @prior.setter
    def prior(self, arg: AcceptanceRates, /) -> None: ...

class PythonDrafter(Drafter):
    """A drafter whose guesses a Python object makes."""

    def __init__(self, strategy: Any, vocab_size: int) -> None:
        """
        strategy has `propose(branch, tokens: int32 [n], limit) -> Draft | None` and may have `observe(branch, first, tokens: int32 [n], features: float32 [n, F] | None)`. What they raise fails the generations that asked.
        """

def mask_words(vocab_size: int) -> int:
    """
    uint32 words of a row of masks: a bit per token, and one more that says that nothing may come.
    """

class ConstraintDriver:
    """Answers for the constraints of all generations of a step."""

class PythonConstraintDriver(ConstraintDriver):
    """One that is a Python object."""

    def __init__(self, answers: Any) -> None:
        """
        answers.take_turns([(job, rule or None, said, most forced)], ended jobs) gives [(forced tokens, complete, error)]: a job's first turn comes with its rule and all that its output has said. answers.grow_drafts([(job, tokens, parents, most added)]) gives [(allowed nodes, added tokens, their parents, error)]. answers.fill_masks([(job, tokens, parents, masks: uint32 [1 + nodes, mask_words])]) fills the masks, zeros before, on another thread, and gives [error]. An error is "" where there is none.
        """

class Constraint:
    """What a generation may say. Known by its identity."""

class PythonConstraint(Constraint):
    """One whose driver is a PythonConstraintDriver."""

    def __init__(self, driver: PythonConstraintDriver, name: str, rule: Any) -> None:
        """name: for errors. rule: what the driver gets."""

    @property
    def rule(self) -> Any: ...

class Sampling:
    """
    How a token is drawn; agentkv.Sampling says what each field means. Ranges are checked where it is used.
    """

    def __init__(self, *, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, logit_bias: Mapping[int, float] = {}) -> None: ...

    @property
    def temperature(self) -> float: ...

    @property
    def top_k(self) -> int: ...

    @property
    def top_p(self) -> float: ...

    @property
    def min_p(self) -> float: ...

    @property
    def repetition_penalty(self) -> float: ...

    @property
    def presence_penalty(self) -> float: ...

    @property
    def frequency_penalty(self) -> float: ...

    @property
    def logit_bias(self) -> dict[int, float]: ...

class GenerateOptions:
    """
    max_tokens: at least 1. stop: strings that end it. seed: of its draws, 0 <= seed < 2**64. emit: each token appears in StepReport.emitted; with emit_ahead above 0 the generation pauses while so many of them are not `taken`. drafter: guesses tokens, so that the same ones take fewer forwards. constraint: what may be said. top_logprobs: 0 to 20, how many of the likeliest tokens are told with each. made, output_made: so many tokens at the end of the branch are of this generation already: penalties count those, and the output under a constraint began with these. pauses: numbers of tokens, in order, at which it waits for room (wait_for_room) whatever there is, as one did that is run again.
    """

    def __init__(self, *, max_tokens: int = 0, stop: Sequence[str] = [], sampling: Sampling = ..., seed: int = 0, ignore_eos: bool = False, emit: bool = False, emit_ahead: int = 0, top_logprobs: int = 0, wait_for_room: bool = False, wait_for_cells_alone: bool = False, drafter: Drafter | None = None, constraint: Constraint | None = None, made: int = 0, output_made: int = 0, pauses: Sequence[int] = []) -> None: ...

    @property
    def max_tokens(self) -> int: ...

    @property
    def stop(self) -> list[str]: ...

    @property
    def sampling(self) -> Sampling: ...

    @property
    def seed(self) -> int: ...

    @property
    def ignore_eos(self) -> bool: ...

    @property
    def emit(self) -> bool: ...

    @property
    def emit_ahead(self) -> int: ...

    @property
    def top_logprobs(self) -> int: ...

    @property
    def wait_for_room(self) -> bool: ...

    @property
    def wait_for_cells_alone(self) -> bool: ...

    @property
    def drafter(self) -> Drafter: ...

    @property
    def constraint(self) -> Constraint: ...

    @property
    def made(self) -> int: ...

    @property
    def output_made(self) -> int: ...

    @property
    def pauses(self) -> list[int]: ...

class PolicyOptions:
    """
    The constants of the drafting policy; engine/policy_options.h has reasons.
    """

    def __init__(self, *, memory: float = 32.0, measured_weight: float = 16.0, guess_weight: float = 2.0, level_acceptance: float = 0.9, node_acceptance: float = 0.5, level_cost: float = 0.25, row_cost: float = 0.0625, outlier: float = 3.0, tolerance: float = 0.02, shortest_pause: int = 4, longest_pause: int = 256) -> None: ...

    @property
    def memory(self) -> float: ...

    @property
    def measured_weight(self) -> float: ...

    @property
    def guess_weight(self) -> float: ...

    @property
    def level_acceptance(self) -> float: ...

    @property
    def node_acceptance(self) -> float: ...

    @property
    def level_cost(self) -> float: ...

    @property
    def row_cost(self) -> float: ...

    @property
    def outlier(self) -> float: ...

    @property
    def tolerance(self) -> float: ...

    @property
    def shortest_pause(self) -> int: ...

    @property
    def longest_pause(self) -> int: ...

class Pin:
    """Cells that stay until they are unpinned."""

    @property
    def id(self) -> int: ...

    @property
    def rows(self) -> int: ...

class StoredBranch:
    """A branch as it is kept outside of the cache."""

    def __init__(self, tokens: Iterable[int], rows: numpy.typing.NDArray[numpy.int32], *, rng_stream: int, forks: int, next_logits: numpy.typing.NDArray[numpy.float32], constraint: Constraint | None = None, output_began: int = 0, output_end: int = 0, output_complete: bool = False, forgotten: Sequence[tuple[int, int, int, bool]] = [], exact_from: int = 0, adapters: Sequence[tuple[int, int]] = []) -> None: ...

    @property
    def tokens(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """int32 [length]."""

    @property
    def rows(self) -> numpy.typing.NDArray[numpy.int32]:
        """
        int32 [n, 3]: from which row of the pin, to which position, how many. What they do not cover is fed again.
        """

    @property
    def forgotten(self) -> list[tuple[int, int, int, bool]]:
        """
        (first, last, at, for_room): positions [first, last) were forgotten when there were `at` tokens; for_room: no rollback takes it back.
        """

    @property
    def adapters(self) -> list[tuple[int, int]]:
        """(position, adapter): tokens from there on have it, up to the next."""

    @property
    def exact_from(self) -> int:
        """
        Rows of earlier positions serve no rollback: they were computed without all that they should see.
        """

    @property
    def rng_stream(self) -> int: ...

    @property
    def forks(self) -> int: ...

    @property
    def next_logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """float32 [vocab_size] after the tokens; [0] where they are not known."""

    @property
    def constraint(self) -> Constraint | None:
        """Of the last output; None for none."""

    @property
    def output_began(self) -> int: ...

    @property
    def output_end(self) -> int: ...

    @property
    def output_complete(self) -> bool: ...

class Engine:
    """
    The step loop over one program and one cache. Used by one thread. A verb checks everything before it changes anything; all but fork, close and the questions raise BranchBusy while a job runs on the branch.
    """

    def __init__(self, runner: ModelRunner, cache: TreeSeqCache, *, token_bytes: Sequence[bytes], eos_ids: Iterable[int], special_ids: Iterable[int], max_batch_tokens: int = 512, max_branches: int = 256, max_positions: int = 0, retain: int = 0, window: int = 0, sinks: int = 0, reach: int = 0, quantize_after: int = -1, layer_windows: Sequence[int] = [], states: bool = False) -> None:
        """
        token_bytes: the bytes of each token id. max_batch_tokens: rows of a step that prefill may fill up. max_branches: live branches; the cache must have as many sequences, and those it has more let select score more choices at once. max_positions: tokens that a branch may hold at most; 0 for any number. retain: cells that closed branches leave to those that begin alike, at most and while nobody else needs them. window, sinks: in no layer does a row look further back than `window` positions, its own among them, the first `sinks` apart; 0 for no window. reach: so many positions before it, over all layers, make the keys and values of a position. quantize_after: cells of all but so many newest positions are held in fewer bits, where the cache can; -1: none are. layer_windows: of the layers that have one, each size once and the shortest first, where other layers look at everything: what is behind them leaves these layers. states: some layers keep states, which hold all that came before: nothing can be forgotten. Raises InvalidEngine.
        """

    def create(self, tokens: Iterable[int] | None = None, adapter: int = 0) -> tuple[int, int]:
        """
        A new branch, whose tokens have this adapter, and how many tokens it reused. Given the tokens that are going to be its prompt, it shares the longest prefix of them that is in the cache, of a live branch or retained, without the last token; extend it by the rest. Raises TooManyBranches, InvalidToken, InvalidRange.
        """

    def create_prompt(self, tokens: Iterable[int], pin: int | None, parts_at: int, rng_stream: int, adapter: int = 0) -> tuple[int, int]:
        """
        As create, for tokens that the rows of a pin, if any, are the beginning of: those that are not in the cache are taken from it. What rows from position `parts_at` on look at stays in layers with windows or states, while the prompt is computed. Its random numbers are of a stream by take_stream(). Raises TooManyBranches, InvalidToken, InvalidRange.
        """

    def take_stream(self) -> int:
        """The stream of random numbers that create would give a branch now."""

    def n_reusable(self, tokens: Iterable[int], adapter: int = 0) -> int:
        """
        How many of these tokens create would reuse. Raises TooManyBranches, InvalidToken, InvalidRange.
        """

    def set_adapter(self, branch: int, adapter: int) -> None:
        """
        From the branch's present end on its tokens have another adapter; 0 for none. Raises BranchClosed, BranchBusy, InvalidRange.
        """

    def adapter(self, branch: int) -> int:
        """The adapter of its next token; 0 for none. Raises BranchClosed."""

    @overload
    def fork(self, branch: int) -> int:
        """
        A branch with the same history. Shares cells and copies no bytes; takes a branch with a running job as it is now. Raises BranchClosed, TooManyBranches.
        """

    @overload
    def fork(self, branch: int, n: int) -> list[int]:
        """As many of them, or none. Raises BranchClosed, TooManyBranches."""

    def copy(self, branch: int) -> int:
        """
        A branch in the same state, random stream included, which is no fork: to go back to, or to try something on and adopt it. Raises BranchClosed, BranchBusy, TooManyBranches.
        """

    def rollback(self, branch: int, length: int, epoch: int | None = None, keep_forgotten: bool = False) -> None:
        """
        Forgets the tokens from `length` on. Given the epoch that the token before `length` had, it raises InvalidRollback where the branch has that token no more. What was forgotten since is taken back, unless it made room or keep_forgotten says that it stays so. Raises BranchClosed, BranchBusy, InvalidRollback.
        """

    def tip(self, branch: int) -> tuple[int, int]:
        """
        Which history a branch has: its length, and the epoch of its last token, 0 where there is none. Tokens that a branch wrote one after another share an epoch, which no others have. Raises BranchClosed, BranchBusy.
        """

    def adopt(self, dst: int, src: int) -> None:
        """
        dst takes over src's history and random stream; src stays as it is. Raises BranchClosed, BranchBusy.
        """

    def forget(self, branch: int, first: int, last: int, for_room: bool = False) -> int:
        """
        Positions [first, last) keep their tokens and lose their cells: from the last token on nothing sees them. With for_room no rollback takes it back. Returns how many cells are free for it. Raises BranchClosed, BranchBusy, InvalidRange.
        """

    def replace(self, branch: int, first: int, last: int, tokens: Iterable[int]) -> None:
        """
        Tokens [first, last) give way to others; all that follows them is fed again by the next job. Raises BranchClosed, BranchBusy, InvalidRange, InvalidToken, PositionsExhausted.
        """

    def forgotten(self, branch: int) -> list[tuple[int, int]]:
        """
        The ranges [first, last) of positions that were forgotten. Raises BranchClosed.
        """

    def drop_cells_from(self, branch: int, length: int) -> None:
        """
        The cache keeps the first `length` tokens of the branch, at most; its next job feeds the others again. Raises BranchClosed, BranchBusy, InvalidRange.
        """

    def resume(self, job: int, made_room: bool) -> None:
        """
        Ends the wait of a generation that StepReport.out_of_room named, on whose branch forget, replace, drop_cells_from and copy worked meanwhile; without room it ends. Nothing happens to other jobs.
        """

    def compact(self, retain: int | None = None) -> int:
        """
        Moves cells to the front of the cache: returns the number of the first one that is free and below no other. With `retain`, what was retained beyond so many cells is let go first. Raises InvalidRange.
        """

    def cells_of(self, branches: Sequence[int]) -> int:
        """
        How many cells these branches have in the cache, those that several have once. Raises BranchClosed.
        """

    def check_owners(self) -> None:
        """
        For tests: raises RuntimeError unless every sequence and every cell has the owners that the tables say.
        """

    def close(self, branch: int) -> None:
        """Cancels the branch's job and frees its cells. Idempotent."""

    def tokens(self, branch: int) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """The branch's tokens, a copy: int32 [length]. Raises BranchClosed."""

    def take_changes(self) -> list[LogChange]:
        """
        How the branches' tokens differ from what the last call said, each branch once, as of the end of its last verb or job.
        """

    def length(self, branch: int) -> int:
        """Raises BranchClosed."""

    def n_cached(self, branch: int) -> int:
        """
        How many of its tokens the cache holds: all, or all but the last. Raises BranchClosed.
        """

    def replaceable(self, branch: int) -> int:
        """
        Tokens before this position can be replaced: not the last one, and none of an output that is being generated. Raises BranchClosed.
        """

    def goes_on(self, branch: int, constraint: Constraint) -> bool:
        """
        Would a generation under this constraint go on with the output that the branch was asked for last? Raises BranchClosed.
        """

    def n_to_refill(self, branch: int) -> int:
        """
        How many of its tokens the next job feeds at once, before all else. Raises BranchClosed.
        """

    def n_exclusive_cells(self, branch: int, first: int) -> int:
        """
        How many cells are free for it once the branch has no token any more from position `first` on. Raises BranchClosed, InvalidRange.
        """

    def rng_stream(self, branch: int) -> int:
        """The key of the branch's random numbers. Raises BranchClosed."""

    def live(self) -> list[int]:
        """The branches, oldest first."""

    def extend(self, branch: int, tokens: Iterable[int]) -> int:
        """
        Feeds tokens, in chunks. All or nothing: when it fails or is cancelled the branch has its old length. Raises BranchClosed, BranchBusy, InvalidToken, PositionsExhausted, ContextFull.
        """

    def generate(self, branch: int, options: GenerateOptions) -> int:
        """
        Samples tokens until eos, a stop string, max_tokens or a full cache. All of them enter the branch's log. Draws depend on (seed, stream of the branch, position) alone; temperature 0 takes the most likely token. Raises BranchClosed, BranchBusy, EmptyBranch, InvalidSampling, PositionsExhausted, InvalidEngine.
        """

    def attach(self, drafter: Drafter) -> None:
        """
        From now on the drafter hears of every branch; a generation that names it attaches it too.
        """

    def acceptance(self, drafter: Drafter) -> AcceptanceRates:
        """
        How often drafts of an attached drafter were accepted, older ones counting less. Raises InvalidEngine.
        """

    def set_policy(self, policy: PolicyOptions) -> None:
        """
        The constants of the drafting policy, for benchmarks to change before the first draft.
        """

    def set_digests(self, on: bool) -> None:
        """
        Do generations digest the rows of logits that they draw from, from now on? See `Finished.digests`.
        """

    def logits(self, branch: int) -> int:
        """The next-token logits. Raises BranchClosed, BranchBusy, EmptyBranch."""

    def select(self, branch: int, choices: Sequence[Iterable[int]]) -> int:
        """
        Scores each choice as a continuation, in one forward where they fit. The branch keeps its tokens. Raises BranchClosed, BranchBusy, EmptyBranch, InvalidToken, InvalidChoices, PositionsExhausted.
        """

    def cancel(self, job: int) -> None:
        """
        Ends a job at once, with finish_reason "cancelled" in the next report. Nothing happens to one that has ended.
        """

    def undo(self, job: int, kept: int = 0) -> bool:
        """
        Ends an extend or a generation that emits, and undoes it as far as it made more than its first `kept` tokens: the branch is as if it had made no more. False where the branch is closed or went on since; then what it made stays.
        """

    def ack(self, job: int, tokens: int) -> None:
        """
        The reader of a generation with emit_ahead has taken so many more of its tokens.
        """

    def pin(self, branches: Sequence[int]) -> tuple[Pin, list[StoredBranch]]:
        """
        Every cell of these branches, once each, and the branches as they are now, running jobs or not. The cells stay until they are unpinned. Raises BranchClosed, TooManyBranches.
        """

    def image(self, branch: int) -> StoredBranch:
        """
        The branch as it is now, running a job or not, without rows and the logits behind it. Raises BranchClosed.
        """

    def pin_unshared(self, branches: Sequence[int]) -> Pin:
        """
        The cells at the ends of branches that nobody else has. The branches run nothing, or wait for room. Raises BranchClosed, BranchBusy, TooManyBranches.
        """

    def reserve(self, rows: int, align: int = 0) -> Pin:
        """
        So many new cells, to be written; with an `align`, in a row from a multiple of it on if there are such cells. Raises ContextFull, TooManyBranches.
        """

    def pinned_cells(self, pin: int, first: int, count: int) -> list[int]:
        """
        Where rows [first, first + count) of a pin lie now; good until the next verb or step. Raises InvalidRange.
        """

    def pinned_dropped_groups(self, pin: int, first: int, count: int) -> numpy.typing.NDArray[numpy.uint8]:
        """
        uint8 [count]: of how many groups of layers rows [first, first + count) of a pin hold nothing. Groups are layers with the same window, numbered from the shortest on. Raises InvalidRange.
        """

    def discard(self, pin: int, first: int, lacks: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        As pinned_dropped_groups gave it, of rows that were written: they hold nothing in these layers from now on. Raises InvalidRange.
        """

    def unpin(self, pin: int) -> None:
        """Lets the cells go that nobody else has. Idempotent."""

    def restore(self, pin: int | None, stored: Sequence[StoredBranch]) -> list[int]:
        """
        New branches over the rows of a pin, or without one where they have no rows; all or none. Raises TooManyBranches, InvalidToken, PositionsExhausted, and InvalidRange for what does not fit together.
        """

    def offload(self, branches: Sequence[int], pin: int) -> None:
        """
        The branches let go of what pin_unshared() gave, and no verb but close, rollback and adopt works on them until it is back. Raises BranchClosed, BranchBusy, and InvalidRange where one went on since.
        """

    def reload(self, branch: int, pin: int | None) -> None:
        """
        What was offloaded last lies in the rows of this pin now; None: it is lost, and all that was offloaded before as well, and is computed again. Raises BranchClosed, InvalidRange.
        """

    def n_offloaded(self, branch: int) -> int:
        """
        Number of rows of the last offload that are still to come back. Raises BranchClosed.
        """

    def sharers(self, branch: int) -> list[int]:
        """
        The branches that have its last cell, itself included; none where it has no cell. Raises BranchClosed.
        """

    def rests(self, branch: int) -> bool:
        """
        Whether the branch runs nothing, or waits for room. Raises BranchClosed.
        """

    def n_running(self) -> int:
        """Number of jobs that take part in steps."""

    def set_stream(self, branch: int, rng_stream: int, forks: int) -> None:
        """
        The key of the branch's random numbers, and how many children drew theirs from it. Raises BranchClosed, BranchBusy.
        """

    def settle(self) -> StepReport:
        """
        What ends without a forward: cancelled jobs, and jobs whose logits are known. A step does the same first; called on its own, those who wait for such jobs can join the step.
        """

    def step(self) -> StepReport:
        """
        At most one merged forward (more only where the rows exceed what the program takes) over the next row of every generation and as many prefill rows as fit. Releases the GIL. Returns at once, idle, when nothing is runnable.
        """

    def stats(self) -> Stats:
        """Counters since the engine was made, and what the cache holds now."""

class ExecuTorchProgram:
    """
    A .pte loaded into this process. Its weights are loaded once, whatever number of sessions run over it; forwards of its sessions take turns.
    """

    def __init__(self, path: str, backend_id: str = 'AgentKVCPU') -> None:
        """
        Raises ProgramError for a file that is missing, damaged, foreign, of an unknown schema version, or made for a backend that is not here.
        """

    @property
    def path(self) -> str: ...

    @property
    def backend_id(self) -> str: ...

    @property
    def metadata(self) -> dict[str, int | list[int]]:
        """The program's `kv_cache.*` constants: facts of the architecture."""

    @property
    def info(self) -> dict[str, int]:
        """vocab_size, max_tokens, max_logits and feature_dim."""

    def make_session(self, *, capacity: int, kv_dtype: str = 'fp16', min_chunk: int = 256, max_sequences: int = 256, policy: str = 'full', window: int = 0, sinks: int = 0) -> ExecuTorchSession:
        """
        A cache of `capacity` cells over these weights. K and V are kept as `kv_dtype` and allocated as needed, min_chunk cells first; `policy` is one of cache_builders(). With a window no layer looks further back than so many positions, the first `sinks` apart. Raises InvalidTensor, InvalidRange or RegistryError.
        """

class ExecuTorchSession(ModelRunner):
    """One cache over a loaded program. Belongs to one thread at a time."""

    @property
    def state_arrays(self) -> list[tuple[str, str, list[int], int | None]]:
        """
        (name, dtype, shape, group) of what a state's bytes are, as cell_arrays; empty where no layer keeps states.
        """

    def with_states(self, cells: Sequence[int]) -> list[int]:
        """Which of these cells, by their index, have states."""

    def read_states(self, cells: Sequence[int]) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None))]:
        """
        uint8 [n, bytes of a state]: those of these cells. Raises InvalidRange for one that has none.
        """

    def write_states(self, cells: Sequence[int], bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        What read_states gave becomes the states of these cells, which have memory. Raises InvalidRange, OutOfMemory.
        """

    @property
    def cell_bytes(self) -> int:
        """Bytes that K and V of one cell take, all layers."""

    @property
    def cell_arrays(self) -> list[tuple[str, str, list[int], int | None]]:
        """
        (name, dtype, shape, group) of what those bytes are, in their order: `layers.0.k`, as safetensors calls the dtype, [n_kv_heads, numbers], and the group of layers without which cells may be, or None.
        """

    def read_cells(self, cells: Sequence[int]) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None))]:
        """
        uint8 [n, cell_bytes]: K and V of these cells, all layers, as they are kept. Raises InvalidRange for a cell that has no memory.
        """

    def write_cells(self, cells: Sequence[int], bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """
        What read_cells gave, of this layer or another of its backend, shape and kv_dtype, back into these cells, no cell twice. Raises InvalidRange.
        """

    def map_cells(self, first: int, count: int, file: int, offsets: Sequence[int]) -> int:
        """
        Cells [first, first + count) become those of an open file (its descriptor), which nobody may change in place from then on: row after row from offsets[i] on, for each head of each array of cell_arrays. Its pages are shared with all who map them, where pages of cells and file agree, until these cells are written; the rest is copied. Returns how many cells, from the first on, are pages of the file. Raises InvalidRange, also by a layer whose cells files cannot be mapped into.
        """

    def to_quantized(self, cells: Sequence[int]) -> None:
        """
        These cells are held in fewer bits until they are written again. Raises InvalidRange, also by a layer that has no fewer bits for them, and OutOfMemory.
        """

    def shrink(self, cells: int) -> None:
        """
        Gives memory above the first `cells` cells back to the system, as far as that is worth it.
        """

    @property
    def cache(self) -> TreeSeqCache:
        """The bookkeeping: which sequence holds which cells."""

    @property
    def program(self) -> ExecuTorchProgram: ...

    def add_adapter(self, weights: Sequence[tuple[str, Sequence[tuple[int, numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.float32]]]]]) -> int:
        """
        Takes a copy of a LoRA adapter, by the names of weights: of each layer the first of its outputs among the weight's, A [rank, inputs] and B [outputs, rank] with the scale in it. Returns its id, for `Engine.create` and `Engine.set_adapter`. Raises ProgramError, InvalidTensor.
        """

    @property
    def kv_bytes(self) -> int:
        """Bytes of memory that K and V of all layers take now."""

    @property
    def states(self) -> int:
        """States that are kept now."""

    @property
    def mapped_bytes(self) -> int:
        """Bytes of K and V that are pages of files, beside `kv_bytes`."""

    @property
    def allocated_cells(self) -> int:
        """Cells that have memory now; grows by doubling up to the capacity."""

def get_threads() -> int:
    """Number of threads of the process-wide pool."""

def set_threads(n: int) -> None:
    """
    Replaces the process-wide pool by one of n threads, 1 to 1024, once the forwards that run now are done.
    """

class PythonRunner(ModelRunner):
    """A runner whose forward is a Python callable."""

    def __init__(self, forward: Callable[..., Any], *, vocab_size: int, max_tokens: int = 512, max_logits: int = 64, feature_dim: int = 0) -> None:
        """
        `forward(tokens [T], positions [T], logits_indices [N]: int64 arrays) -> float32 [N, vocab_size]`; with a feature_dim a tuple of these logits and of features, float32 [T, feature_dim]. What it raises becomes ForwardFailed.
        """

class PromptLookup(Drafter):
    """
    Guesses that a branch goes on as this text did before, in its own history or in that of any branch of the engine. Costs no forward.
    """

    def __init__(self, *, max_ngram: int = 16, min_ngram: int = 2, max_nodes: int = 16, width: int = 2, max_chain: int = 16, max_tokens: int = 262144) -> None:
        """
        The last tokens of a branch, max_ngram of them at most and min_ngram at least, are looked up in the newest max_chain places where they occurred. A draft has at most max_nodes nodes and `width` continuations that differ. max_tokens of text are kept; the oldest is forgotten. Raises InvalidDrafter.
        """

class SuffixDrafter(Drafter):
    """
    Guesses that a branch goes on as the longest text that it ends with went on before, in any branch of the engine or a corpus. Costs no forward.
    """

    def __init__(self, *, max_nodes: int = 16, max_tokens: int = 262144, spellings: object = ()) -> None:
        """
        A draft has at most max_nodes nodes. max_tokens of text are kept; the oldest is forgotten. spellings: for each token one that is the same word, by which a lone token is found as well. Raises InvalidDrafter.
        """

    def read_corpus(self, text: object) -> None:
        """
        Text of earlier processes, tokens of the vocabulary. Call it before the drafter is attached.
        """

    def new_text(self) -> list[numpy.typing.NDArray[numpy.int32]]:
        """What the branches brought that the drafter did not know, oldest first."""

class MixedDrafter(Drafter):
    """Several drafters, of whose guesses the engine verifies what pays best."""

    def __init__(self, parts: Sequence[Drafter]) -> None: ...

class ExecuTorchHead:
    """
    A draft head's .pte loaded into this process. Its weights are loaded once, whatever number of sessions run over it; calls of its sessions take turns.
    """

    def __init__(self, path: str, backend_id: str = 'AgentKVCPU') -> None:
        """
        Raises ProgramError for a file that is missing, damaged, foreign, of an unknown schema version, no draft head, or made for a backend that is not here.
        """

    @property
    def path(self) -> str: ...

    @property
    def info(self) -> dict[str, int]:
        """
        vocab_size (of the head), max_tokens, max_logits, feature_dim, hidden_dim, n_kv_heads, head_dim.
        """

    def make_session(self, *, capacity: int, kv_dtype: str = 'fp16', min_chunk: int = 256, max_sequences: int = 256, policy: str = 'full', window: int = 0, sinks: int = 0) -> ExecuTorchHeadSession:
        """
        A cache of `capacity` cells over these weights. K and V are kept as `kv_dtype` and allocated as needed, min_chunk cells first; `policy` is one of cache_builders(). With a window no layer looks further back than so many positions, the first `sinks` apart. Raises InvalidTensor, InvalidRange or RegistryError.
        """

class ExecuTorchHeadSession:
    """One cache over a loaded draft head. Belongs to one thread at a time."""

    @property
    def cache(self) -> TreeSeqCache:
        """The bookkeeping: which sequence holds which cells."""

    @property
    def head(self) -> ExecuTorchHead: ...

    @property
    def kv_bytes(self) -> int:
        """Bytes that K and V take now."""

    def fuse(self, features: numpy.typing.NDArray[numpy.float32]) -> numpy.typing.NDArray[numpy.float32]:
        """
        features [n, feature_dim] of the target -> [n, hidden_dim]. Raises ForwardFailed.
        """

    def forward(self, tokens: numpy.typing.NDArray[numpy.int64], positions: numpy.typing.NDArray[numpy.int64], hidden: numpy.typing.NDArray[numpy.float32], logits_indices: numpy.typing.NDArray[numpy.int64]) -> tuple[numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.float32]]:
        """
        One forward over the rows of the cache's open step: tokens [T], positions [T], hidden [T, hidden_dim], logits_indices [N] -> logits [N, vocab_size] and hidden [N, hidden_dim] of those rows. Raises ForwardFailed; abort the step then.
        """

class ModelDrafter(Drafter):
    """
    Drafts with a second, smaller program: trees that grow by one forward per level.
    """

    def __init__(self, session: ExecuTorchSession, *, width: int = 8, top_k: int = 8, vocab_size: int = 0) -> None:
        """
        session: this drafter's alone; its program speaks the target's vocabulary. Per branch and level, the `width` most likely nodes are run and get `top_k` children each. vocab_size: ids from it on are padding, which is never proposed; 0 where the program has none. Raises InvalidDrafter.
        """

    @property
    def levels(self) -> int:
        """Levels of draft trees that were asked for."""

    @property
    def forwards(self) -> int:
        """
        Forwards that they took: one per level for all branches together, more only where the rows exceed what the program takes.
        """

    @property
    def prefills(self) -> int:
        """Forwards that kept up with prompts as the target ran them."""

    @property
    def seconds(self) -> float:
        """Time inside the program."""

    @property
    def cache(self) -> TreeSeqCache:
        """The bookkeeping of the drafter's own cache."""

class EagleDrafter(Drafter):
    """
    Drafts with an EAGLE-3 head over the target's features: one forward of the head per level.
    """

    def __init__(self, session: ExecuTorchHeadSession, d2t: Sequence[int], target_vocab_size: int, *, width: int = 8, top_k: int = 8, depth: int = 0) -> None:
        """
        session: this drafter's alone. d2t: token i of the head is token i + d2t[i] of the target; empty where the vocabularies are equal. Per branch and level, the `width` most likely nodes are run and get `top_k` children each. depth: levels of a draft at most; 0: as many as pay. Raises InvalidDrafter.
        """

    @property
    def levels(self) -> int:
        """Levels of draft trees that were asked for."""

    @property
    def forwards(self) -> int:
        """
        Forwards that they took: one per level for all branches together, more only where the rows exceed what the program takes.
        """

    @property
    def prefills(self) -> int:
        """Forwards that kept up with prompts as the target ran them."""

    @property
    def seconds(self) -> float:
        """Time inside the program."""

    @property
    def cache(self) -> TreeSeqCache:
        """The bookkeeping of the drafter's own cache."""
