"""Errors of the Python half of the runtime. The native half raises the classes of `_core.Error`."""

__all__ = [
    "BackendError",
    "DraftMismatchError",
    "ExportError",
    "FormatError",
    "GGUFError",
    "ModelFolderError",
    "PullError",
    "QualityError",
    "QuantizationError",
    "StoreError",
    "TemplateTimeout",
    "TensorFileError",
    "TokenizerError",
    "UnknownSchemaError",
    "UnsupportedModelError",
]


class BackendError(ImportError):
    """A backend that this installation cannot run; the message says what to install."""


class ModelFolderError(ValueError):
    """A folder that is no model folder, lacks a file, or holds one that does not fit the others."""


class GGUFError(ModelFolderError):
    """A GGUF file that is cut, damaged, or of a version that is not read."""


class DraftMismatchError(ModelFolderError):
    """A draft model or head that does not fit its target; the message names both sides."""


class TokenizerError(ValueError):
    """A tokenizer or chat template that is missing, damaged, or refuses its input."""


class TemplateTimeout(TokenizerError):
    """A chat template that does not end in the time that it was given."""


class FormatError(ValueError):
    """A response template that is malformed, a call format that is not known, or one that cannot say what is asked."""


class TensorFileError(ValueError):
    """A file of tensors that is missing, unreadable, damaged, or not one of ours."""


class UnknownSchemaError(ValueError):
    """Cache metadata of a version that this runtime does not read."""


class ExportError(RuntimeError):
    """A model that could not be exported."""


class QuantizationError(ExportError):
    """The model's layers do not fit the chosen quantisation."""


class PullError(RuntimeError):
    """A model that could not be downloaded from the hub, or that did not come whole."""


class QualityError(ValueError):
    """A text, or a source to compare with, on which a model's quality cannot be measured."""


class StoreError(ValueError):
    """A model that is not among the exported ones that are kept, or a folder for them that cannot be used."""


class UnsupportedModelError(ExportError):
    """A model whose attention needs something that attending through a cache does not compute."""
