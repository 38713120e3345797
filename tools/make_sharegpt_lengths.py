#!/usr/bin/env python3
"""Writes the lengths of ShareGPT's first turns and their answers, for crates/paceline/src/bench/workload.rs.

    paceline serve smollm2-135m --port 8000
    tools/make_sharegpt_lengths.py http://127.0.0.1:8000

Takes 200 conversations at random that begin with a human turn and its answer, where the turn has 4 to
1024 tokens, the answer at least 4, and both together at most 2048, as vLLM's benchmark chooses them.
The server counts tokens: it is asked for one token after each text.
"""

import json
import pathlib
import random
import subprocess
import sys
import urllib.request

N = 200


def conversations(text):
    """Those before the file breaks off."""
    decoder = json.JSONDecoder()
    at = text.index("[") + 1
    while True:
        while text[at] in " \r\n\t,":
            at += 1
        try:
            conversation, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            return
        yield conversation["conversations"]


def n_tokens(url, text):
    body = json.dumps({"prompt": text, "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)["usage"]["prompt_tokens"]


def main():
    (url,) = sys.argv[1:]
    fetch = pathlib.Path(__file__).with_name("fetch_sharegpt.py")
    path = subprocess.run([fetch], check=True, capture_output=True, text=True).stdout.strip()
    text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
    pairs = [
        (turns[0]["value"], turns[1]["value"])
        for turns in conversations(text)
        if len(turns) > 1 and turns[0]["from"] == "human" and turns[1]["from"] == "gpt"
    ]
    random.Random(0).shuffle(pairs)
    lengths = []
    for prompt, answer in pairs:
        if len(lengths) == N:
            break
        # What is that long has more tokens than are wanted, or is no text.
        if not (prompt and answer) or len(prompt) > 8000 or len(answer) > 12000:
            continue
        p, a = n_tokens(url, prompt), n_tokens(url, answer)
        if 4 <= p <= 1024 and a >= 4 and p + a <= 2048:
            lengths.append((p, a))
    for i in range(0, N, 10):
        print("    " + " ".join(f"({p}, {a})," for p, a in lengths[i : i + 10]))


if __name__ == "__main__":
    main()
