"""The known formats, one file per family of models."""

from __future__ import annotations

from collections.abc import Mapping

from agentkv_runtime.formats.families.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from agentkv_runtime.formats.families.family import Family
from agentkv_runtime.formats.families.gemma import FUNCTION_GEMMA, GEMMA
from agentkv_runtime.formats.families.generic import GENERIC
from agentkv_runtime.formats.families.glm import GLM
from agentkv_runtime.formats.families.granite import GRANITE, PHI4
from agentkv_runtime.formats.families.harmony import HARMONY
from agentkv_runtime.formats.families.hermes import HERMES, NANO
from agentkv_runtime.formats.families.lfm2 import LFM2
from agentkv_runtime.formats.families.llama import LLAMA_JSON, PYTHONIC
from agentkv_runtime.formats.families.mistral import MISTRAL, MISTRAL_ARGS, MISTRAL_SPACED
from agentkv_runtime.formats.families.plain import PLAIN
from agentkv_runtime.formats.families.qwen_xml import QWEN_XML

__all__ = ["FAMILIES", "Family"]

# Tried in this order: those that know the beginning of calls by a marker come first.
_TABLE = (
    *(HERMES, NANO, QWEN_XML, GLM, MISTRAL, MISTRAL_SPACED, MISTRAL_ARGS, HARMONY, DEEPSEEK_V3, DEEPSEEK_V31),
    *(PHI4, GRANITE, LFM2, GEMMA, FUNCTION_GEMMA, LLAMA_JSON, PYTHONIC, GENERIC, PLAIN),
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _TABLE}
