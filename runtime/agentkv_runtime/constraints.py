"""Classes of the native module with which its step loop constrains the tokens of a generation."""

from agentkv_runtime._core import Constraint, ConstraintDriver, PythonConstraint, PythonConstraintDriver, mask_words

__all__ = ["Constraint", "ConstraintDriver", "PythonConstraint", "PythonConstraintDriver", "mask_words"]
