"""Advice for keyword arguments that a public call does not take."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from .sampling import Sampling

_ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "capacity": ("n_ctx", "num_ctx", "ctx_size", "context_length", "max_model_len", "max_seq_len"),
    "device": ("n_gpu_layers", "num_gpu", "device_map"),
    "instructions": ("system", "system_prompt", "prompt_template"),
    "kv_dtype": ("type_k", "type_v", "cache_type_k", "cache_type_v", "kv_cache_dtype"),
    "max_batch_tokens": ("n_batch", "num_batch", "max_num_batched_tokens"),
    "max_calls_per_message": ("parallel_tool_calls",),
    "max_rounds": ("max_turns", "max_iterations", "max_steps", "recursion_limit"),
    "max_tokens": ("n_predict", "num_predict", "max_new_tokens", "max_completion_tokens", "max_output_tokens"),
    "model": ("model_path", "model_name", "model_id"),
    "output": ("response_format", "output_type", "result_type", "json_schema", "grammar"),
    "quant": ("quantization", "quantize"),
    "repetition_penalty": ("repeat_penalty",),
    "speculative": ("draft_model", "speculative_model"),
    "stop": ("stop_sequences", "stop_strings"),
    "thinking": ("reasoning_effort", "enable_thinking", "budget_tokens"),
    "threads": ("n_threads", "num_thread", "num_threads"),
    "tools": ("functions",),
    "top_logprobs": ("logprobs", "n_probs"),
    "url": ("base_url", "api_base"),
}
"""Our options, and their names in llama.cpp, Ollama, vLLM, transformers and OpenAI's and other agents' libraries."""
_OURS = {other: ours for ours, others in _ELSEWHERE.items() for other in others}


def near_name(name: str, known: Collection[str]) -> str | None:
    """The name among `known` that `name` is a usual other word for, or a near miss of; None for none."""
    ours = _OURS.get(name)
    return ours if ours in known else next(iter(get_close_matches(name, sorted(known), 1, 0.75)), None)


def advice_on(name: str, call: str, calls: Mapping[str, Collection[str]]) -> str:
    """Error message for a keyword that `call` does not take; `calls` has the keywords of each public call."""
    known = calls[call]
    every = {*Sampling.model_fields, *(option for options in calls.values() for option in options)}
    meant = name if name in every else near_name(name, known) or near_name(name, every)
    refused = f"{call} has no option {name!r}"
    if meant is None:
        return f"{refused}; it takes {', '.join(known)}"
    if meant in known:
        return f"{refused}; did you mean {meant!r}?"
    asked = "" if meant == name else f"did you mean {meant!r}? "
    if meant in Sampling.model_fields:
        where = "" if "sampling" in known else f" to {_places('sampling', calls)}"
        return f"{refused}; {asked}{meant} belongs to Sampling: give sampling=kv.Sampling({meant}=...){where}"
    return f"{refused}; {asked}{meant} is an option of {_places(meant, calls)}"


def _places(option: str, calls: Mapping[str, Collection[str]]) -> str:
    return " and ".join(call for call, options in calls.items() if option in options)
