"""What a generation may say, as the step loop of the native module takes it."""

from agentkv_runtime._core import Constraint, ConstraintDriver, PythonConstraint, PythonConstraintDriver, mask_words

__all__ = ["Constraint", "ConstraintDriver", "PythonConstraint", "PythonConstraintDriver", "mask_words"]
