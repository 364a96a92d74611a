"""Says what went wrong in code that is not ours, and where."""

from __future__ import annotations

from torch import nn

__all__ = ["blame", "first_line"]


def first_line(error: BaseException) -> str:
    """The first line of an error's message that says something, or its type where there is none."""
    if "Constraints violated" in str(error):  # torch names guards, which say nothing to who did not write the model
        return "what it computes depends on how many rows it is given"
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.endswith(":")]
    return f"{type(error).__name__}: {said[0].rstrip('.')}" if said else type(error).__name__


def blame(error: BaseException, model: nn.Module) -> str:
    """`: what the error says (in the module whose forward raised it)`, to end a sentence about the model."""
    names = {id(module): name for name, module in model.named_modules() if name}
    where = ""
    trace = error.__traceback__
    while trace is not None:
        where = names.get(id(trace.tb_frame.f_locals.get("self")), where)
        trace = trace.tb_next
    return f": {first_line(error)}" + (f" (in {where})" if where else "")
