"""Deferred parameters, whose values are loaded on use, so that no model is in memory as a whole.

A deferred parameter is untouched memory: address space of the right size without pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

__all__ = [
    "defer",
    "is_deferred",
    "is_taken",
    "load_all",
    "loading_as_it_runs",
    "present",
    "stored",
    "taken",
    "value",
]

Load = Callable[[], torch.Tensor]

_LOADS: Any = WeakIdKeyDictionary()
_TAKEN: Any = WeakIdKeyDictionary()


def defer(shape: Sequence[int], dtype: torch.dtype, load: Load) -> nn.Parameter:
    """A parameter of this shape and dtype whose value `load` returns, in any float dtype if `dtype` is a float one."""
    parameter = nn.Parameter(torch.empty(tuple(shape), dtype=dtype), requires_grad=False)
    _LOADS[parameter] = load
    return parameter


def is_deferred(tensor: torch.Tensor) -> bool:
    """Whether this object is a parameter made by `defer`."""
    return tensor in _LOADS


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """Loads the value of a deferred parameter in its stored dtype, without keeping it; returns other tensors as is."""
    return _LOADS[tensor]() if tensor in _LOADS else tensor.detach()


def value(tensor: torch.Tensor) -> nn.Parameter:
    """`stored` as an ordinary, contiguous parameter in the dtype of the deferred one."""
    dense = stored(tensor).to(tensor.dtype).contiguous()
    if dense.untyped_storage().nbytes() != dense.nbytes:
        dense = dense.clone()  # ExecuTorch reads a tensor's memory from its beginning, also of one that is a slice
    return nn.Parameter(dense, requires_grad=False)


def taken(tensor: torch.Tensor) -> nn.Parameter:
    """`value`, for a program that is being written; marks the parameter, see `is_taken`."""
    _TAKEN[tensor] = True
    return value(tensor)


def is_taken(tensor: torch.Tensor) -> bool:
    """Whether a program got this object's value by `taken`."""
    return tensor in _TAKEN


def _deferred_of(module: nn.Module) -> dict[str, nn.Parameter]:
    held = module._parameters.items()
    return {name: parameter for name, parameter in held if parameter is not None and is_deferred(parameter)}


def _real(parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    return {name: value(parameter) for name, parameter in parameters.items()}


@contextmanager
def present(root: nn.Module) -> Iterator[None]:
    """Loads all deferred parameters of a module and its submodules for the block."""
    deferred = {module: _deferred_of(module) for module in root.modules()}
    try:
        for module, parameters in deferred.items():
            module._parameters.update(_real(parameters))
        yield
    finally:
        for module, parameters in deferred.items():
            module._parameters.update(parameters)


@contextmanager
def loading_as_it_runs(root: nn.Module) -> Iterator[None]:
    """Loads each module's own deferred parameters, in the block, while the module's forward runs.

    At other times they are empty, so that using one outside of that forward raises an error instead of reading
    arbitrary memory.
    """
    deferred = {module: held for module in root.modules() if (held := _deferred_of(module))}
    hooks = []

    def load(module: nn.Module, _args: object) -> None:
        module._parameters.update(_real(deferred[module]))

    def drop(module: nn.Module, *_: object) -> None:
        for name, parameter in deferred[module].items():
            module._parameters[name] = nn.Parameter(parameter.new_empty(0), requires_grad=False)

    try:
        for module in deferred:
            drop(module)
            hooks.append(module.register_forward_pre_hook(load))
            hooks.append(module.register_forward_hook(drop, always_call=True))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, parameters in deferred.items():
            module._parameters.update(parameters)


def load_all(root: nn.Module) -> None:
    """Replaces a module's deferred parameters by their values; tied ones stay tied."""
    loaded: dict[nn.Parameter, nn.Parameter] = {}
    for module in root.modules():
        for name, parameter in _deferred_of(module).items():
            if parameter not in loaded:
                loaded[parameter] = value(parameter)
            module._parameters[name] = loaded[parameter]
