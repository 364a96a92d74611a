"""Changes to a model before its first run that let it attend through a cache later."""

from __future__ import annotations

from typing import Any

from agentkv_runtime.hf.attention import remember_latent
from agentkv_runtime.hf.indexed import pick_all
from agentkv_runtime.hf.latent import absorb_latents
from agentkv_runtime.hf.mixers import mix_here
from agentkv_runtime.hf.own_attention import ask_for_attention
from agentkv_runtime.hf.own_experts import route_experts
from agentkv_runtime.hf.own_mixers import mix_by_ours
from agentkv_runtime.hf.own_positions import take_positions

__all__ = ["prepare"]


def prepare(model: Any) -> None:
    """Changes a model in place. It computes the same without a cache, and its weights may be deferred afterwards."""
    absorb_latents(model, remember_latent)
    ask_for_attention(model)
    pick_all(model)
    mix_here(model)
    mix_by_ours(model)
    take_positions(model)
    route_experts(model)
