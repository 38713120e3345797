#!/usr/bin/env python3
"""Writes llama.cpp's greedy text after the prompts of crates/model/tests/golden, for golden.rs there.

    pip install llama-cpp-python==0.3.36 numpy
    tools/make_greedy_fixture.py

tests/llama_cpp/greedy.json: for each model a case per prompt: up to 48 tokens (fewer if one ended the
text), and for each ln p of the best minus ln p of the second-best. Models are read from the cache.
"""

import json

import llama_cpp
import numpy as np
from make_tokenizer_corpus import CACHE, MODELS, OUT

TESTS = OUT.parent
N_TOKENS = 48


def greedy(model, ids):
    model.reset()
    model.eval(ids)
    tokens, margins = [], []
    while True:
        logits = np.ctypeslib.as_array(
            llama_cpp.llama_get_logits_ith(model.ctx, -1), shape=(model.n_vocab(),)
        )
        second, best = np.argsort(logits, kind="stable")[-2:]
        tokens.append(int(best))
        margins.append(round(float(logits[best]) - float(logits[second]), 3))
        if len(tokens) == N_TOKENS or llama_cpp.llama_vocab_is_eog(model._model.vocab, best):
            return {"greedy": tokens, "greedy_margin": margins}
        model.eval([int(best)])


def main():
    models = []
    for name in MODELS:
        cases = json.loads((TESTS / f"golden/{name}.json").read_text())
        path = CACHE / f"models/{name}.gguf"
        model = llama_cpp.Llama(str(path), n_ctx=2048, n_batch=2048, flash_attn=True, verbose=False)
        lines = ",\n".join(json.dumps(greedy(model, case["ids"])) for case in cases)
        models.append(f'"{name}": [\n{lines}\n]')
    (TESTS / "llama_cpp").mkdir(exist_ok=True)
    (TESTS / "llama_cpp/greedy.json").write_text("{\n" + ",\n".join(models) + "\n}\n")


if __name__ == "__main__":
    main()
