"""One prefill, many samples: sequences of a sequence session share the prompt's cells, and each forward serves all."""

from __future__ import annotations

import numpy as np
from agentkv_runtime.sessions import make_seq_session
from agentkv_runtime.text.tokenizer import Tokenizer

from agentkv.models import nano

SAMPLES = 6
TEMPERATURE = 1.7
TRUNK = 0


def main() -> None:
    """Draw six answers, forget five, and go on with the likeliest."""
    tokenizer = Tokenizer.from_folder(nano())
    eos = set(tokenizer.eos_ids)
    session = make_seq_session(nano(), capacity=1024, max_sequences=SAMPLES + 1)

    prompt = tokenizer.apply_chat([{"role": "user", "content": "Tell me a joke."}])
    row = session.forward(prompt, [TRUNK] * len(prompt), rows=[len(prompt) - 1])[0]
    samples = range(1, SAMPLES + 1)
    for seq in samples:
        session.seq_cp(TRUNK, seq)  # shares cells, copies no byte

    rng = np.random.default_rng(1)
    rows = dict.fromkeys(samples, row)
    made: dict[int, list[int]] = {seq: [] for seq in samples}
    scores = dict.fromkeys(samples, 0.0)
    forwards = 0
    while rows:
        for seq, logits in rows.items():
            logp = (logits.astype(np.float64) - logits.max()) / TEMPERATURE
            logp -= np.log(np.exp(logp).sum())
            token = int(rng.choice(len(logp), p=np.exp(logp)))
            made[seq].append(token)
            scores[seq] += float(logp[token])
        going = [seq for seq in rows if made[seq][-1] not in eos and len(made[seq]) < 40]
        rows = dict(zip(going, session.forward([made[s][-1] for s in going], going), strict=True)) if going else {}
        forwards += bool(going)

    for seq in samples:
        print(f"{scores[seq]:7.2f}  {tokenizer.decode(made[seq])}")
    best = max(samples, key=scores.__getitem__)
    n_tokens = sum(map(len, made.values()))
    print(f"\n{n_tokens} tokens in {forwards} forwards; {session.used} cells, {session.shared} shared")
    session.seq_keep(best)
    session.seq_rm(best, len(prompt))  # the winner's prompt alone: ready for another try
    print(f"after keeping sample {best} and forgetting its answer: {session.used} cells")


if __name__ == "__main__":
    main()
