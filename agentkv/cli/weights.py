"""What a manifest says about weights, for people: sizes, and what quantisation lost, by kind of layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._console.console import print_table, stdout
from .._types.show import bytes_text

if TYPE_CHECKING:
    from agentkv_runtime.folder.manifest import Manifest

_WORST = 5
_HEADS = ("head", "embed_out")


@dataclass(frozen=True)
class Weight:
    """One layer's weight."""

    name: str
    count: int | None
    """Numbers in it; None where the export is too old to say."""
    size: int | None
    """Bytes in the program; None where nobody counted them."""
    bits: int | None
    """Of a number that is quantised."""
    error: float | None
    """The norm of what quantisation changed, beside the weight's own; None where that was not measured."""

    @property
    def kind(self) -> str:
        """What layers of other depths have, too: the layer's own name; "embedding" or "head"; experts apart."""
        *path, name = self.name.removesuffix(".weight").split(".")
        if self.name == "the embedding":
            return "embedding"
        if name.endswith(_HEADS) and not any(part.isdigit() for part in path):
            return "head"
        return f"experts' {name}" if "experts" in path else name


def weights_of(facts: Manifest) -> list[Weight]:
    """The weights that a manifest names, in the model's order as far as it has one."""
    names = dict.fromkeys([*facts.weight_counts, *facts.weight_bits, *facts.weight_errors])
    return [
        Weight(
            name,
            facts.weight_counts.get(name),
            facts.weight_bytes.get(name),
            facts.weight_bits.get(name),
            facts.weight_errors.get(name),
        )
        for name in names
    ]


def size_text(facts: Manifest) -> str:
    """The bytes of the program, and bits per weight where the weights were counted."""
    count = sum(facts.weight_counts.values())
    bits = f", {8 * facts.model_bytes / count:.1f} bits per weight" if count else ""
    return f"{bytes_text(facts.model_bytes)}{bits}"


def quantization_text(facts: Manifest) -> str:
    """How weights are quantised, by which recipe, and the types of blocks that they have, or that a file's had and what
    these became; the most frequent first. What is not known is left out.
    """
    quantization = facts.quantization + (f" ({facts.weight_recipe} recipe)" if facts.weight_recipe else "")
    counts = Counter(facts.weight_types.values()).most_common()
    types = ", ".join(f"{count} {kind}" for kind, count in counts)
    return f"{quantization}: {types}" if types else quantization


def loss_text(facts: Manifest) -> str | None:
    """One sentence about the errors of a model's quantised weights, each as heavy as it is large; None without any."""
    error = _mean_error(weights_of(facts))
    if error is None:
        return None
    return (
        f"Quantised weights differ from their own by {_percent(error)} (relative error, weighted by size): an estimate."
    )


def print_weights(facts: Manifest, *, every: bool) -> None:
    """Prints a row per kind of layer, then the worst layers by name; with `every` all of them."""
    weights = weights_of(facts)
    if not weights:
        stdout.print("Nothing is said of weights: older exports do not. Export the model again.", soft_wrap=True)
        return
    columns = ("weights", "layers", "bits each", "of the bytes", "mean error", "worst")
    print_table("weights by kind (errors are relative)", columns, list(_kind_rows(weights)))
    lossy = sorted((each for each in weights if each.error), key=lambda each: -(each.error or 0))
    shown = [*lossy, *(each for each in weights if not each.error)] if every else lossy[:_WORST]
    if shown:
        title = (
            "every weight, the worst first" if every else f"the worst {len(shown)} of {len(weights)} (--all: every one)"
        )
        rows = [(each.name, _bits([each]), _percent(each.error)) for each in shown]
        print_table(title, ("layer", "bits each", "error"), rows)
    else:
        stdout.print("Nothing was lost of them, or the backend does not say.", soft_wrap=True)


def _kind_rows(weights: Sequence[Weight]) -> Iterator[tuple[str, ...]]:
    kinds: dict[str, list[Weight]] = {}
    for weight in weights:
        kinds.setdefault(weight.kind, []).append(weight)
    total = sum(each.size or 0 for each in weights)
    for kind, members in kinds.items():
        sizes = [each.size for each in members if each.size is not None]
        share = f"{100 * sum(sizes) / total:.1f}%" if len(sizes) == len(members) else ""
        worst = max((each.error for each in members if each.error is not None), default=None)
        yield kind, str(len(members)), _bits(members), share, _percent(_mean_error(members)), _percent(worst)


def _mean_error(weights: Sequence[Weight]) -> float | None:
    known = [(each.error, each.count or 1) for each in weights if each.error is not None]
    return sum(error * count for error, count in known) / sum(count for _, count in known) if known else None


def _bits(weights: Sequence[Weight]) -> str:
    """Bits per number with its share of scales, or without where only those are known."""
    counted = [(each.size, each.count) for each in weights if each.size is not None and each.count is not None]
    if len(counted) == len(weights):
        return f"{8 * sum(size for size, _ in counted) / sum(count for _, count in counted):.2f}"
    return "/".join(map(str, sorted({each.bits for each in weights if each.bits is not None})))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}%"
