"""What a GGUF file says, written as files of a folder on a machine that has neither torch nor transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from agentkv_runtime.errors import ExportError
from agentkv_runtime.gguf.architectures import describe
from agentkv_runtime.gguf.description import write_description
from agentkv_runtime.gguf.file import open_file
from agentkv_runtime.text.tokenizer import Tokenizer

from tests.models import VOCAB_SIZE
from tests.runtime.gguf.rows import ARCHITECTURES
from tests.runtime.gguf.tiny_files import tiny_model, write_file

WITHOUT_TORCH = """
import sys
from pathlib import Path

class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("torch", "transformers", "gguf"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Missing())
from agentkv_runtime.gguf.description import write_description

weights = write_description(Path(sys.argv[1]), Path(sys.argv[2]))[0].weights()
print(sum(weights.floats(name).size for name in weights.names()))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, row = tmp_path_factory.mktemp("gguf") / "model.gguf", ARCHITECTURES["llama"]
    write_file(path, row, tiny_model(row, vocab_size=VOCAB_SIZE))
    return path


def test_a_folder_is_written_without_torch(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(path), str(tmp_path)]
    counted = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    description = describe(open_file(path))
    assert int(counted) == sum(parameter.numbers().size for parameter in description.parameters.values())
    assert json.loads((tmp_path / "config.json").read_text()) == description.config
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.has_chat_template
    assert tokenizer.decode(tokenizer.encode("a branch")) == "a branch"


def test_templates_that_are_no_texts_are_refused(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    at = data.index(b"tokenizer.chat_template") + len(b"tokenizer.chat_template")
    length = int.from_bytes(data[at + 4 : at + 12], "little")
    numbers = (9).to_bytes(4, "little") + (0).to_bytes(4, "little") + length.to_bytes(8, "little")
    other = data[:at] + numbers + data[at + 12 : at + 12 + length] + data[at + 12 + length :]
    (tmp_path / "odd.gguf").write_bytes(other)
    with pytest.raises(ExportError, match=r"odd\.gguf: the chat template 'tokenizer\.chat_template' is no text"):
        write_description(tmp_path / "odd.gguf", tmp_path)
