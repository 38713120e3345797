#!/usr/bin/env python3
"""Writes the tokenizer corpus and llama.cpp's token ids of it, for crates/model/tests/tokenizer.rs.

    pip install llama-cpp-python==0.3.36 gguf
    tools/fetch_test_data.py
    tools/make_tokenizer_corpus.py

tests/tokenizer/corpus.json: texts, one a line, made here and always the same.
tests/tokenizer/MODEL.ids: a line per text with a hash of its ids, then for some the ids: those with
control tokens parsed, `|`, those with control tokens as plain text. Models are read from the cache.
tests/tokenizer/pre.json: for each pre-tokenizer that it names, a hash of the ids of all shorter texts
with Qwen's vocabulary (a line per text, control tokens as plain text). To add one, add its name.
"""

import json
import os
import pathlib
import random
import tempfile

OUT = pathlib.Path(__file__).parent.parent / "crates/model/tests/tokenizer"
CACHE = pathlib.Path(
    os.environ.get("PACELINE_CACHE")
    or pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "paceline"
)
MODELS = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"]
N_TEXTS = 2400
N_FULL = 240
PRE_LEN = 300

WORDS = """the a of and to in is that it was for on are as with his they at be this from have or by one had not
but what all were when we there can an your which their said if do will each about how up out them then she
many some so these would other into has more her two like him see time could no make than first been its who
now people my made over did down only way find use may water long little very after words called just where
most know Internationalization antidisestablishmentarianism tokenizer perplexity quicksort HTTPServer iPhone
XMLHttpRequest getElementById snake_case_name SCREAMING_CASE camelCaseName kebab-case-name don't it's we'll
I'm they'RE YOU'D can’t o'clock rock'n'roll naïve café Zürich façade coöperate jalapeño smörgåsbord""".split()
PHRASES = [
    "你好，世界！今天天气怎么样？", "人工智能正在改变我们的生活。", "請問洗手間在哪裡？", "これはテストです。", "カタカナとひらがな、漢字。",
    "東京都の人口は約1400万人です", "안녕하세요, 반갑습니다.", "대한민국의 수도는 서울입니다", "Привет, как дела?", "Широкая электрификация южных губерний",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία", "مرحبا بالعالم، كيف حالك؟", "שלום עולם, מה שלומך?", "नमस्ते दुनिया, आप कैसे हैं?", "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "வணக்கம் உலகம்", "გამარჯობა მსოფლიო", "Բարեւ աշխարհ", "ሰላም ልዑል", "ជំរាបសួរ​ពិភពលោក", "မင်္ဂလာပါ", "Chào thế giới, tiếng Việt có dấu",
    "İstanbul'da ağaç ığdır", "Łódź żółć gęślą jaźń", "Příliš žluťoučký kůň", "Árvíztűrő tükörfúrógép", "ﬁne ﬂow ǅ ǆ ŉ ſt", "𝕳𝖊𝖑𝖑𝖔 𝒲𝑜𝓇𝓁𝒹 𝟘𝟙𝟚",
    "ＦＵＬＬ　ｗｉｄｔｈ　１２３", "ᏣᎳᎩ ꮳꮃꭹ", "ⵣⴰⵎⴰⵣⵉⵖ", "ᚠᚢᚦᚨᚱᚲ", "𒀀𒁀𒂀 𓀀𓁀", "𠀀𠀁𪚥",
]
EMOJI = ["😀", "🚀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷🇩🇪", "1️⃣", "❤️", "☕", "🫠", "🪿", "™️", "©", "♥", "→", "√2≈1.41", "½¾⅓", "Ⅷⅷ", "①②③", "٣٤٥", "१२३", "²³", "€£¥₿", "°C", "…", "—", "–", "“q”", "‘q’", "«q»", "„q“", "¿?¡!"]
MARKS = ["e\u0301", "a\u0308\u0304", "o\u0302\u0301\u0323", "n\u0303", "Z\u0351\u036b\u0343\u032b\u0329a\u0300\u0316l\u0334g\u0336o\u0322", "\u1112\u1161\u11ab", "\u0915\u094d\u0937\u093f", "\u0e01\u0e33\u0e49", "\u0301start", "A\u030a \u00c5 \u212b", "\u0628\u0651\u064e", "x\u20d7", "q\u0307\u0323 q\u0323\u0307"]
ODD = ["\0", "\x01\x02\x1f", "\x7f", "\x80\x85\x9f", "\u00a0", "\u00ad", "\u034f", "\u061c", "\u180e", "\u200b", "\u200c\u200d", "\u200e\u200f", "\u2028", "\u2029", "\u202a\u202c", "\u2060", "\u2066\u2069", "\u3000", "\ufe0f", "\ufeff", "\ufffc", "\ufffd", "\ufdd0", "\uffff", "\ue000", "\U000e0001", "\U000e0041", "\U000f0000", "\U0010ffff", "\u2581", "\u2581\u2581x", "Ġ", "Ċ", "ĉ", "Ā", "<0x0A>", "<0x41>", "\u0378", "\U0001fbff"]
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<s>", "</s>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>", "<issue_start>", "<jupyter_start>", "<empty_output>", "<tool_call>", "</tool_call>", "<think>", "</think>", "<|object_ref_start|>", "<|vision_start|>", "<|eot_id|>", "<unused0>", "<unused42>", "[multimodal]", "[INST]", "[/INST]", "</div>", "<h1>", "<table>", "</ul>"]
BROKEN = ["<|im_start", "im_end|>", "<|im_ end|>", "<<|im_end|>>", "<|im_start|><|im_end|", "<|IM_END|>", "<| im_end |>", "<|im_<|im_end|>end|>", "< s >", "<bos", "bos>", "<end_of_turn", "<|", "|>", "<", "<|endoftext|", "▁<s>", "<｜im_end｜>"]
SPACES = [" ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u3000", "\v", "\f", "\u2003", "\u2028"]
CODE = [
    "def fib(n: int) -> int:\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];\n}\n",
    "fn main() {\n    let x: Vec<u32> = (0..10).map(|i| i * i).collect();\n    println!(\"{x:?}\");\n}\n",
    "SELECT u.id, COUNT(*) FROM users u\n  LEFT JOIN orders o ON o.user_id = u.id\n WHERE u.age >= 18\n GROUP BY 1;\n",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"days\": 3, \"exact\": true, \"x\": null}}",
    "<!DOCTYPE html>\n<html>\n  <body class=\"a b\">\n    <p>Hi &amp; bye<br/></p>\n  </body>\n</html>\n",
    "\\begin{align}\n  \\int_0^\\infty e^{-x^2}\\,dx &= \\frac{\\sqrt{\\pi}}{2}\\\\\n\\end{align}\n",
    "@@ -1,4 +1,4 @@\n-    old = 1\n+    new = 2\n \n context\n",
    "#!/bin/sh\nset -eu\nfor f in *.txt; do echo \"$f\" | sed 's/a/b/g' >> out.log 2>&1; done\n",
    "class A:\n\n\n    \"\"\"Doc.\"\"\"\n\n        x = 0xDEADBEEF; y = 1_000_000; z = 1e-9j\n\r\n\r\n",
    "| a | b |\n|---|:-:|\n| 1 | **2** |\n\n```py\nx=1\n```\n\n- [ ] todo\n  1. nested\n",
    "https://example.com/a/b?q=1&r=%20x#frag user@example.org 192.168.0.1:8080 2026-07-04T15:06:09Z",
    "550e8400-e29b-41d4-a716-446655440000 dGhlIHF1aWNrIGJyb3duIGZveA== 0x7fffe4d2 #ff00AA v1.2.3-rc.4+build.5",
    "if(a&&b||!c){x=y?z:w;}/*c*///d\n#include <stdio.h>\n~^%$@`'\"\\\\",
]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'ve", "'VE", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D", "'\u017f", "’s", "'x", "''s", "'", " 's", "'sa", "'reX", "1's", "!'ll"]


def texts():
    rng = random.Random(20260704)
    pick = rng.choice

    def space():
        return pick(SPACES) * pick([1, 1, 1, 2, 3, 4, 7, 8, 15, 16, 31, 40])

    def number():
        return "".join(pick("0123456789") for _ in range(rng.randint(1, 12)))

    def code_point():
        while True:
            block = pick([0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x110000])
            c = rng.randrange(block)
            if not 0xD800 <= c < 0xE000:
                return chr(c)

    def fragment():
        kind = rng.randrange(14)
        if kind < 4:
            return pick(WORDS)
        return [
            lambda: pick(PHRASES), lambda: pick(EMOJI), lambda: pick(MARKS), lambda: pick(ODD),
            lambda: pick(CONTROL), lambda: pick(BROKEN), space, lambda: pick(CODE)[: rng.randint(1, 60)],
            lambda: pick(CONTRACTIONS), number,
        ][kind - 4]()

    yield ""
    for group in (WORDS, PHRASES, EMOJI, MARKS, ODD, CONTROL, BROKEN, CODE, CONTRACTIONS):
        yield from group
    for control in CONTROL:
        yield f"a{control}b"
        yield f" {control} "
        yield f"{control}\n{control}{control}"
    for space_ in SPACES:
        for n in (1, 2, 3, 5, 8, 16, 17, 33):
            yield space_ * n
            yield f"x{space_ * n}y"
            yield f"{space_ * n}1"
            yield f"!{space_ * n}?"
    for a in SPACES:
        for b in SPACES:
            yield f"{a}{b}{a}w{b}{a}{a}\n{b}."
    for n in (1, 2, 3, 4, 5, 6, 7, 9, 10, 16, 30):
        yield "1234567890"[:n] if n <= 10 else "1234567890" * 3 + "1" * (n - 30)
        yield "7" * n
        yield "x" + "0" * n + "y"
        yield "٣" * n
    for n in (10, 50, 100, 200):
        for text in ("a", "ab", "é", "字", "🚀", " a", "\n ", "-", "=*", "Aa", "'s", "1 "):
            yield text * n
    for role in ("system", "user", "assistant", "tool"):
        for text in CODE:
            yield f"<|im_start|>{role}\n{text}<|im_end|>\n"
            yield f"<start_of_turn>{role}\n{text}<end_of_turn>\n"
    for _ in range(250):
        yield "".join(code_point() for _ in range(rng.randint(1, 12)))
    for _ in range(250):
        yield " ".join(pick(WORDS) for _ in range(rng.randint(2, 30))) + pick([".", "?", "!\n", "\n\n", ""])
    while True:
        yield "".join(fragment() + pick(["", "", " "]) for _ in range(rng.randint(1, 9)))


def fnv(text):
    """FNV-1a, 64 bits."""
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def ids(model, text, parse):
    return " ".join(map(str, model.tokenize(text.encode(), add_bos=False, special=parse)))


def pre_tokenizers(corpus):
    """Has llama.cpp cut the corpus with each pre-tokenizer."""
    from gguf import GGUFReader, GGUFWriter
    from llama_cpp import Llama

    vocab = GGUFReader(CACHE / "test-data/llama.cpp-vocabs/ggml-vocab-qwen2.gguf").fields
    strings = {
        name: [bytes(vocab[f"tokenizer.ggml.{name}"].parts[i]) for i in vocab[f"tokenizer.ggml.{name}"].data]
        for name in ("tokens", "merges")
    }
    hashes = {}
    for pre in json.loads((OUT / "pre.json").read_text()):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/vocab.gguf"
            file = GGUFWriter(path, "qwen2")
            file.add_tokenizer_model("gpt2")
            file.add_tokenizer_pre(pre)
            file.add_token_list(strings["tokens"])
            file.add_token_merges(strings["merges"])
            file.add_token_types(vocab["tokenizer.ggml.token_type"].contents())
            file.add_bos_token_id(151643)
            file.add_eos_token_id(151643)
            file.write_header_to_file()
            file.write_kv_data_to_file()
            file.close()
            model = Llama(model_path=path, vocab_only=True, verbose=False)
            shorter = [text for text in corpus if len(text) < PRE_LEN]
            hashes[pre] = fnv("\n".join(ids(model, text, False) for text in shorter))
    (OUT / "pre.json").write_text(json.dumps(hashes, indent=2) + "\n")


def main():
    unique = {}
    for text in texts():
        unique[text] = None
        if len(unique) == N_TEXTS:
            break
    corpus = list(unique)
    OUT.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(text, ensure_ascii=True) for text in corpus)
    (OUT / "corpus.json").write_text(f"[\n{lines}\n]\n")

    from llama_cpp import Llama

    for name in MODELS:
        path = CACHE / f"models/{name}.gguf"
        model = Llama(model_path=str(path), vocab_only=True, verbose=False)
        with open(OUT / f"{name}.ids", "w") as out:
            for i, text in enumerate(corpus):
                both = "|".join(ids(model, text, parse) for parse in (True, False))
                full = i * N_FULL % N_TEXTS < N_FULL and len(both) < 400
                out.write(fnv(both) + (f" {both}" if full else "") + "\n")
    pre_tokenizers(corpus)


if __name__ == "__main__":
    main()
