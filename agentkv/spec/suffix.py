"""Speculation from the longest text that was there before, in this process or an earlier one."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._types.checks import check_keeps_files, checked_count, checked_path
from .._types.errors import InvalidInput
from ._built_in import MOST_NODES, BuiltIn, DraftTarget, check_adaptive

if TYPE_CHECKING:
    from agentkv_runtime.corpus import Corpus
    from agentkv_runtime.speculation import Drafter

_FEWEST_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class Suffix(BuiltIn):
    """Drafts what followed the longest text that a branch ends with, wherever in the Context that was: a tree where it
    went on in several ways, the most frequent first.

    Forks of a trunk draft from each other, and from what was rolled back or closed. Needs no second model and costs no
    forward; a token costs the same however much text there is. After SuffixDecoding
    (https://arxiv.org/abs/2411.04975).

    With `corpus`, text outlives the process: what the branches said and read is added to a file of that folder when the
    Context closes, and is drafted from by later Contexts with the same model. It holds token ids, in effect the text
    itself, so keep the folder as private as your conversations. A file that is damaged or of another model is left out
    with a warning.

    Attributes:
        max_nodes: maximum nodes of a draft, 1 to 64.
        max_tokens: maximum tokens of text in memory, at least 4096, at some 200 bytes each (`ctx.stats.draft_bytes`);
            the oldest are forgotten.
        corpus: folder of texts from earlier processes, made where there is none; None for none. Processes may share it.
            A path that is no folder, and a system without locks on files, raise InvalidInput when the Context opens.
        corpus_bytes: maximum bytes of a model's text there, 4 a token, at least 4096; the oldest are dropped.
        adaptive: adjust drafts to their measured cost and benefit; False always verifies as many nodes as fit.
    """

    max_nodes: int = 16
    max_tokens: int = 1 << 18
    corpus: str | Path | None = None
    corpus_bytes: int = 1 << 19
    adaptive: bool = True

    def __post_init__(self) -> None:
        checked_count(self.max_nodes, "max_nodes", 1, MOST_NODES)
        checked_count(self.max_tokens, "max_tokens", _FEWEST_TOKENS, 1 << 30)
        checked_count(self.corpus_bytes, "corpus_bytes", _FEWEST_TOKENS, 1 << 40)
        check_adaptive(self.adaptive)
        if self.corpus is not None:
            object.__setattr__(self, "corpus", checked_path(self.corpus, "corpus", "the path of a folder"))

    def _open(self, target: DraftTarget) -> Drafter:
        from agentkv_runtime.errors import TensorFileError
        from agentkv_runtime.speculation import SuffixDrafter
        from agentkv_runtime.text.spellings import spellings

        drafter = SuffixDrafter(
            max_nodes=self.max_nodes, max_tokens=self.max_tokens, spellings=spellings(target.token_bytes)
        )
        if corpus := self._corpus(target):
            check_keeps_files("corpus")
            try:
                corpus.make_folder()
            except OSError as error:
                raise InvalidInput(
                    f"corpus is {self.corpus}, where no text can be kept: {error.strerror}; give the path of a folder, "
                    "or of one that can be made"
                ) from error
            try:
                for text in corpus.read():
                    drafter.read_corpus(text)
            except TensorFileError as error:
                warnings.warn(f"drafts begin without a corpus: {error}; it is replaced later", stacklevel=2)
            except OSError as error:
                warnings.warn(f"drafts begin without a corpus: {error}", stacklevel=2)
        return drafter

    def _close(self, drafter: Drafter, target: DraftTarget) -> None:
        from agentkv_runtime.speculation import SuffixDrafter

        assert isinstance(drafter, SuffixDrafter)
        corpus = self._corpus(target)
        if corpus and (texts := drafter.new_text()):
            try:
                corpus.add(texts, self.corpus_bytes)
            except OSError as error:
                warnings.warn(f"the corpus was not kept: {error}", stacklevel=2)

    def _corpus(self, target: DraftTarget) -> Corpus | None:
        if self.corpus is None:
            return None
        from agentkv_runtime.corpus import Corpus

        return Corpus(Path(self.corpus), target.fingerprint(), target.vocab_size)
