"""What is said of errors that are not ours."""

from __future__ import annotations

import pytest
import torch
from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.program import lower_methods
from agentkv_runtime.export.target import Target
from agentkv_runtime.folder.metadata import KvCacheMetadata
from agentkv_runtime.hf.blame import blame, first_line


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("only on Tuesdays.\nand here is why")


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Identity(), Inner()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_the_innermost_module_is_named() -> None:
    model = Outer()
    with pytest.raises(ValueError, match="only on Tuesdays") as raised:
        model(torch.zeros(1))
    assert blame(raised.value, model) == ": ValueError: only on Tuesdays (in layers.1)"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError(""), "RuntimeError"),
        (KeyError("a"), "KeyError: 'a'"),
        (RuntimeError("Failed to run:\n  a and b differ"), "RuntimeError: a and b differ"),
        (RuntimeError("Constraints violated (T)! For more"), "what it computes depends on how many rows it is given"),
    ],
)
def test_the_first_line_that_says_something(error: Exception, line: str) -> None:
    assert first_line(error) == line


@torch.library.custom_op("agentkv_test::negated", mutates_args=())
def negated(x: torch.Tensor) -> torch.Tensor:
    return -x


@negated.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_what_executorch_cannot_lower_is_an_export_error() -> None:
    class Negates(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return negated(x)

    traced = torch.export.export(Negates(), (torch.zeros(3),))
    with pytest.raises(ExportError, match=r"cannot be lowered to XNNPACK and the attention delegate: .*Missing out"):
        lower_methods({"forward": traced}, KvCacheMetadata(1, 1, 8), Target("cpu").lowering(), lambda _: None)
