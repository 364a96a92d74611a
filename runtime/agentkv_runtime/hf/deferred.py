"""Parameters that have a shape at once and a value when somebody needs it, so that no model is in memory as a whole.

A deferred parameter is memory that nobody has touched: address space of the right size, and no page of it.
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
    """A parameter of this shape and dtype whose value `load` brings; any floats will do where `dtype` is one."""
    parameter = nn.Parameter(torch.empty(tuple(shape), dtype=dtype), requires_grad=False)
    _LOADS[parameter] = load
    return parameter


def is_deferred(tensor: torch.Tensor) -> bool:
    """Is this object a parameter that `defer` made?"""
    return tensor in _LOADS


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """The value of a deferred parameter as it was stored, loaded now and kept by nobody; others are their own."""
    return _LOADS[tensor]() if tensor in _LOADS else tensor.detach()


def value(tensor: torch.Tensor) -> nn.Parameter:
    """`stored` in the dtype of the parameter and as dense memory, as a parameter that is not deferred."""
    dense = stored(tensor).to(tensor.dtype).contiguous()
    if dense.untyped_storage().nbytes() != dense.nbytes:
        dense = dense.clone()  # ExecuTorch reads a tensor's memory from its beginning, also of one that is a slice
    return nn.Parameter(dense, requires_grad=False)


def taken(tensor: torch.Tensor) -> nn.Parameter:
    """`value`, for a program that is written: afterwards the parameter `is_taken`."""
    _TAKEN[tensor] = True
    return value(tensor)


def is_taken(tensor: torch.Tensor) -> bool:
    """Did a program get this object's value?"""
    return tensor in _TAKEN


def _deferred_of(module: nn.Module) -> dict[str, nn.Parameter]:
    held = module._parameters.items()
    return {name: parameter for name, parameter in held if parameter is not None and is_deferred(parameter)}


def _real(parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    return {name: value(parameter) for name, parameter in parameters.items()}


@contextmanager
def present(root: nn.Module) -> Iterator[None]:
    """In the block, all deferred parameters of a module and those inside it have their values."""
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
    """In the block, each module has the values of its own deferred parameters while its forward runs.

    At other times they are empty there, so that whoever computes with one outside of that forward gets an error and not
    what happens to lie in memory.
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
    """Gives a module's deferred parameters their values for good; tied ones stay tied."""
    loaded: dict[nn.Parameter, nn.Parameter] = {}
    for module in root.modules():
        for name, parameter in _deferred_of(module).items():
            if parameter not in loaded:
                loaded[parameter] = value(parameter)
            module._parameters[name] = loaded[parameter]
