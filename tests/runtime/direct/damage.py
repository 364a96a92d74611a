"""Damage to Hugging Face folders, and what exporting a damaged one without torch comes to. Run as a script, it works
through a range of seeds.

python -m tests.runtime.direct.damage FOLDER_OF_FOLDERS FIRST_SEED LAST_SEED
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from traceback import format_exception
from typing import Any

import numpy as np
from agentkv_runtime.folder.model_folder import read_model_folder
from typer.testing import CliRunner

from agentkv.cli import app
from tests.agentkv import damage

Damage = Callable[[random.Random, Path], object]
Header = dict[str, Any]

SIZES: list[Any] = [0, 1, 2, 3, 31, 64, 96, 2**16, 2**31, 2**53, 2**60, 2**63, 2**64, 10**30, -1, 1.5, True, "64", None]
DTYPES = ["F32", "F16", "BF16", "F64", "I8", "U8", "F8_E4M3", "F4", "BOOL", "", "f32", "\x1b[31m", None, 7]
SETTINGS: dict[str, list[Any]] = {
    "model_type": ["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma3_text", "smollm3", "bert", "x" * 999],
    "rope_scaling": [
        {"type": "dynamic", "factor": 2.0}, {"rope_type": "strange"}, {"rope_type": ["yarn"]}, {"type": "su"},
        {"rope_type": "yarn", "factor": -1}, {"rope_type": "yarn", "factor": 1e300}, {"rope_type": "linear"},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1}, "yarn", [1], {"": {}},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1e-300] * 8},
        {"rope_type": "longrope", "short_factor": [1.0], "long_factor": []},
    ],
    "rope_theta": [0, 1, -1, 1e308, 1e-308, "10000", float("nan"), float("inf"), 5e5],
    "layer_types": [["full_attention"], ["sliding_attention"] * 2, ["strange"] * 2, "full_attention", [None, None]],
    "sliding_window": [0, 1, -8, 2**40, "8", 8],
    "tie_word_embeddings": [True, False, "yes", None, 0],
    "hidden_act": ["relu", "gelu", "silu", None, 7, ["silu"], {}],
    "quantization_config": [{"quant_method": "awq"}, "int8", [], 1],
    "attention_bias": [True, "no", 1],
    "mlp_bias": [True],
    "partial_rotary_factor": [0.5, 0.1, 3, -1, 1e-9, "1"],
    "max_window_layers": [-1, 0, 1, "1", 2**70, None],
    "use_sliding_window": [True, "no"],
    "query_pre_attn_scalar": [0, -1, "x", 1e-300, True, [8]],
    "eos_token_id": [2**31, -1, [0, "a"], "x", 1e9],
    "bos_token_id": [2**31, "x"],
    **{name: SIZES for name in (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "vocab_size", "max_position_embeddings", "sliding_window_pattern", "rms_norm_eps",
        "final_logit_softcapping", "original_max_position_embeddings",
    )},
}  # fmt: skip
"""Of a config: what hostile ones may say."""


def weights_of(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.safetensors")) if path.is_file()]


def taken_apart(path: Path) -> tuple[Header, bytes]:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def put_together(path: Path, text: str, numbers: bytes) -> None:
    said = text.encode("utf-8", "surrogatepass")
    path.write_bytes(struct.pack("<Q", len(said)) + said + numbers)


def lies_about(rng: random.Random, header: Header, name: str, other: str) -> list[Callable[[], object]]:
    """What a header may be made to say of a tensor."""
    entry = header.get(name, {})
    strange = rng.choice(("x", "", "model.", "../x", "\x1b[31m", name + "x"))
    return [
        lambda: entry.update(dtype=rng.choice(DTYPES)),
        lambda: entry.update(shape=[rng.choice(SIZES) for _ in range(rng.choice((0, 1, 2, 2, 2, 3, 9)))]),
        lambda: entry.update(shape=entry["shape"][::-1]),
        lambda: entry.update(shape=rng.choice((None, 64, "64", {}))),
        lambda: entry.update(data_offsets=[rng.choice(SIZES), rng.choice(SIZES)]),
        lambda: entry.update(data_offsets=[each + 4 for each in entry["data_offsets"]]),
        lambda: entry.update(data_offsets=entry["data_offsets"][::-1]),
        lambda: entry.update(data_offsets=header[other]["data_offsets"]),
        lambda: entry.update(data_offsets=rng.choice((None, [], [0], [0, 4, 8], "0"))),
        lambda: header.pop(name),
        lambda: header.update({strange: header.pop(name)}),
        lambda: header.update({name: header[other], other: header[name]}),
        lambda: header.update({name: rng.choice(damage.HOSTILE)}),
        lambda: header.update(__metadata__=rng.choice(damage.HOSTILE)),
        lambda: header.update({f"model.layers.{rng.choice((2, 9, 10**6))}.mlp.down_proj.weight": dict(entry)}),
    ]


def lie_in_a_header(rng: random.Random, folder: Path) -> None:
    path = rng.choice(weights_of(folder))
    header, numbers = taken_apart(path)
    names = [name for name in header if name != "__metadata__"]
    for _ in range(rng.choice((1, 1, 2, 5))):
        with suppress(KeyError, TypeError, AttributeError):  # of what an earlier lie left
            rng.choice(lies_about(rng, header, rng.choice(names), rng.choice(names)))()
    put_together(path, json.dumps(header), numbers)


def spell_a_header_badly(rng: random.Random, folder: Path) -> None:
    path = rng.choice(weights_of(folder))
    header, numbers = taken_apart(path)
    text = json.dumps(header)
    at, put_in = rng.randrange(len(text)), rng.choice(("{", "}", "\x00", '"', "\udcff", "9" * 5000))
    ways = (
        text[:at], text[:at] + put_in + text[at:], text[:-1] + "," + text[1:], "[" * 100_000, "[]", "{}", "null", "",
        '{"a":' * 100_000, text + " " * 1000, " " + text,
    )  # fmt: skip
    put_together(path, rng.choice(ways), numbers)


def lie_about_a_headers_length(rng: random.Random, folder: Path) -> None:
    path = rng.choice(weights_of(folder))
    with path.open("r+b") as file:
        file.write(struct.pack("<Q", rng.choice((0, 1, 2, 7, 100, 2**20, 2**31, 2**60, 2**63, 2**64 - 1))))


def cut_weights(rng: random.Random, folder: Path) -> None:
    damage.cut_short(rng, rng.choice(weights_of(folder)))


def put_numbers_that_are_none(rng: random.Random, folder: Path) -> None:
    """One weight of a tensor, or all, is infinite, NaN, or as large or small as its type allows."""
    path = rng.choice(weights_of(folder))
    header, numbers = taken_apart(path)
    name = rng.choice([name for name in header if name != "__metadata__"])
    begin, end = header[name]["data_offsets"]
    kind: Any = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}.get(header[name]["dtype"], np.uint8)
    changed = np.frombuffer(numbers, np.uint8).copy()
    part = changed[begin:end].view(kind)
    bits = {2: (0x7F80, 0x7FC0, 0xFF80, 0x7F7F, 0x0001, 0x7C00, 0x7BFF), 4: (0x7F800000, 0x7FC00000, 0x7F7FFFFF, 1)}
    value = rng.choice(bits.get(part.itemsize, (255,)))
    at = slice(None) if rng.random() < 0.3 else rng.randrange(len(part))
    part.view(f"u{part.itemsize}")[at] = value
    put_together(path, json.dumps(header), changed.tobytes())


def lie_in_an_index(rng: random.Random, folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    places: dict[Any, Any] = {}
    for path in weights_of(folder):
        places |= dict.fromkeys(taken_apart(path)[0], path.name)
    if not index.exists():
        weights = folder / "model.safetensors"
        other = folder / "model-00001-of-00001.safetensors"
        weights.rename(other)
        places = dict.fromkeys(places, other.name)
    places.pop("__metadata__", None)
    name = rng.choice(list(places))
    places[name] = rng.choice((
        "../model.safetensors", "/etc/passwd", "/dev/zero", "gone.safetensors", "", ".", "..", "a/../model.safetensors",
        "tokenizer.json", "\x00.safetensors", "x" * 300 + ".safetensors", None, 7, [], {}, "\udcff.safetensors",
        "model.safetensors.index.json", " .safetensors", "-.safetensors", "*.safetensors", "loop.safetensors",
    ))  # fmt: skip
    if places[name] == "loop.safetensors":
        (folder / "loop.safetensors").symlink_to("loop.safetensors")
    whole = {"weight_map": places}
    others = ({"weight_map": list(places)}, {"weight_map": {}}, {}, {"weight_map": None}, places)
    said = whole if rng.random() < 0.6 else rng.choice(others)
    index.write_text(json.dumps(said))


def lie_in_a_config(rng: random.Random, folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for _ in range(rng.choice((1, 1, 2, 4))):
        name = rng.choice(list(SETTINGS))
        config[name] = rng.choice(SETTINGS[name])
    path.write_text(json.dumps(config))


def damage_a_file(rng: random.Random, folder: Path) -> str:
    return damage.damage(rng, folder)


def empty_a_folder(rng: random.Random, folder: Path) -> None:
    """Some files are all that is left."""
    for path in folder.iterdir():
        if path.name != "config.json" or rng.random() < 0.3:
            path.unlink()


def lead_elsewhere(rng: random.Random, folder: Path) -> None:
    """The folder itself is a loop, a pipe, a file or nothing."""
    shutil.rmtree(folder)
    what = rng.choice(("loop", "pipe", "file", "nothing"))
    if what == "loop":
        folder.symlink_to(folder.name)
    elif what == "pipe":
        os.mkfifo(folder)
    elif what == "file":
        folder.write_bytes(rng.randbytes(100))


DAMAGES: list[Damage] = [
    *[lie_in_a_header] * 6, spell_a_header_badly, lie_about_a_headers_length, cut_weights,
    *[put_numbers_that_are_none] * 3, *[lie_in_an_index] * 2, *[lie_in_a_config] * 6, *[damage_a_file] * 4,
    empty_a_folder, lead_elsewhere,
]  # fmt: skip
# Several at a time only of those that leave files for others.
TOGETHER = (lie_in_a_header, put_numbers_that_are_none, lie_in_a_config)


def damaged(rng: random.Random, folder: Path) -> str:
    """Damages a folder once or twice; says how."""
    if rng.random() < 0.1:
        hows: list[Damage] = [rng.choice(TOGETHER) for _ in range(2)]
    else:
        hows = [rng.choice(DAMAGES)]
    done = []
    for how in hows:
        with suppress(KeyError, TypeError, ValueError, IndexError):  # of what an earlier one left
            done.append(f"{how.__name__} {how(rng, folder) or ''}".strip())
    return ", ".join(done)


def outcome(seed: int, sources: list[Path]) -> dict[str, Any]:
    """Damages a copy of one of the folders and exports it: what was done, and what came of it."""
    rng = random.Random(seed)
    source = rng.choice(sources)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        folder, out = Path(shutil.copytree(source, place / "model")), place / "out"
        found = {"seed": seed, "source": source.name, "damage": damaged(rng, folder)}
        quant = rng.choice(("q4", "q4", "q5", "q6", "q8"))
        done = CliRunner().invoke(app, ["export", str(folder), str(out), "--quant", quant, "--max-tokens", "16"])
        left = sorted(path.name for path in place.iterdir() if path.name != "model")
        if done.exit_code == 0:
            read_model_folder(out).verify()
            assert left == ["out"], left
            return {**found, "end": "exported", "said": ""}
        lines = [line for line in done.output.splitlines() if line.strip()]
        if done.exit_code != 1 or not isinstance(done.exception, SystemExit) or not lines[-1].startswith("error: "):
            return {**found, "end": "CRASHED", "said": "".join(format_exception(done.exception))}
        assert left == [], left
        assert all(line.isprintable() for line in lines), lines
        return {**found, "end": "refused", "said": " ".join(lines).replace(str(place), "")}


def main() -> None:
    root, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    sources = sorted(root.iterdir())
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # what asks for more is refused, not killed
    for name in ("torch", "transformers", "executorch", "torchao"):
        sys.modules[name] = None  # type: ignore[assignment]
    for seed in range(first, last):
        faulthandler.dump_traceback_later(60, exit=True)
        print(json.dumps(outcome(seed, sources)), flush=True)


if __name__ == "__main__":
    main()
