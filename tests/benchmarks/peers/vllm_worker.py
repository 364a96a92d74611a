"""Runs inside vLLM's own environment: measures the rows that come on standard input, a JSON object a line.

Answers go to the descriptor that is named on the command line, because vLLM logs to standard output.
    python vllm_worker.py CHECKPOINT DESCRIPTOR POSITIONS BRANCHES TOKENS
"""

from __future__ import annotations

import json
import os
import sys
import time

from vllm import LLM, SamplingParams

Prompt = dict[str, list[int]]


def prompt(n: int, seed: int) -> Prompt:
    """n tokens that share no beginning with another seed's."""
    return {"prompt_token_ids": [(seed * 7919 + i * 104_729) % 256 for i in range(n)]}


def seconds(llm: LLM, prompts: list[Prompt], tokens: int) -> float:
    """Until all prompts have made so many tokens, greedily."""
    sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    llm.generate(prompts, sampling, use_tqdm=False)
    return time.perf_counter() - start


def rate(llm: LLM, row: dict[str, int], tokens: int, seed: int) -> float:
    """Tokens per second of a row."""
    if "tokens" in row:
        return row["tokens"] / seconds(llm, [prompt(row["tokens"], seed)], 1)
    trunk = prompt(max(16, row["depth"]), row["depth"])["prompt_token_ids"]
    branches = [{"prompt_token_ids": [*trunk, i % 256]} for i in range(row["branches"])]
    seconds(llm, branches, 1)  # leaves the trunk in vLLM's prefix cache
    return row["branches"] * tokens / (seconds(llm, branches, tokens + 1) - seconds(llm, branches, 1))


def main() -> None:
    """Loads the model once and answers until standard input ends."""
    checkpoint, answers = sys.argv[1], os.fdopen(int(sys.argv[2]), "w")
    positions, branches, tokens = map(int, sys.argv[3:])
    llm = LLM(checkpoint, dtype="bfloat16", max_model_len=positions, max_num_seqs=branches, enforce_eager=True)
    for number, line in enumerate(sys.stdin, start=1):
        print(json.dumps(rate(llm, json.loads(line), tokens, number)), file=answers, flush=True)


if __name__ == "__main__":
    main()
