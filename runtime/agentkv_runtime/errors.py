"""Errors of the Python half of the runtime. The native half raises the classes of `_core.Error`."""

__all__ = [
    "AdapterError",
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
    """A folder that is no model folder, lacks a file, or has one that does not fit the others."""


class GGUFError(ModelFolderError):
    """A GGUF file that is truncated, damaged, or of an unsupported version."""


class DraftMismatchError(ModelFolderError):
    """A draft model or head that does not fit its target; the message names both sides."""


class TokenizerError(ValueError):
    """A tokenizer or chat template that is missing, damaged, or refuses its input."""


class TemplateTimeout(TokenizerError):
    """A chat template that exceeds its time limit."""


class FormatError(ValueError):
    """A malformed response template, an unknown call format, or a message that a format cannot express."""


class AdapterError(ValueError):
    """A LoRA adapter that is missing, damaged, of an unsupported kind, or of another model."""


class TensorFileError(ValueError):
    """A file of tensors that is missing, unreadable, damaged, or not written by agentkv."""


class UnknownSchemaError(ValueError):
    """Cache metadata of a version that this runtime does not read."""


class ExportError(RuntimeError):
    """A model that could not be exported."""


class QuantizationError(ExportError):
    """A model whose layers do not fit the chosen quantisation."""


class PullError(RuntimeError):
    """A model that could not be downloaded from the hub, or whose download is incomplete or damaged."""


class QualityError(ValueError):
    """A text, or a source to compare with, on which a model's quality cannot be measured."""


class StoreError(ValueError):
    """A model that is not in the store of exported models, or a store that cannot be used."""


class UnsupportedModelError(ExportError):
    """A model, or a feature of one, that agentkv does not compute."""
