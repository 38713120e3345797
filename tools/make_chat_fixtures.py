#!/usr/bin/env python3
"""Renders chat templates with Jinja2, set up as transformers sets it up, for crates/model/tests/chat.rs.

    pip install --target DIR jinja2 gguf numpy
    PYTHONPATH=DIR tools/make_chat_fixtures.py

Reads tests/chat/cases.json and tests/chat/templates/*.jinja (our own) and writes what they give to
tests/chat/rendered.json. Of templates that are not ours (those in the cached models, and those that
tools/fetch_test_data.py puts into the cache) tests/chat/published.json keeps only hashes.
"""

import json
import os
import pathlib
from datetime import datetime

import jinja2
import jinja2.ext
import jinja2.sandbox

CHAT = pathlib.Path(__file__).parent.parent / "crates/model/tests/chat"
CACHE = pathlib.Path(
    os.environ.get("PACELINE_CACHE")
    or pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "paceline"
)
NOW = datetime(2026, 7, 4, 15, 6, 9)
REASONING = ("reasoning_content", "thinking", "reasoning")


class Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant says: it only delimits."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


class Refused(jinja2.exceptions.TemplateError):
    """What a template says with raise_exception."""


def raise_exception(message):
    raise Refused(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def normal(message):
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[key] for key in REASONING if key in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def render(source, case, bos, eos):
    """The text; {"refused": message} if the template refuses; None if it fails otherwise."""
    try:
        return environment().from_string(source).render(
            messages=[normal(message) for message in case["messages"]],
            tools=case.get("tools"),
            documents=case.get("documents"),
            add_generation_prompt=case.get("add_generation_prompt", True),
            **{"bos_token": bos, "eos_token": eos, **case.get("variables", {})},
        )
    except Refused as refused:
        return {"refused": " ".join(str(refused).split())}
    except Exception:  # Templates fail in any way they like on what they do not expect.
        return None


def fnv(text):
    """FNV-1a, 64 bits."""
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def gguf_templates():
    from gguf import GGUFReader

    for path in sorted((CACHE / "models").glob("*.gguf")):
        field = GGUFReader(path).fields.get("tokenizer.chat_template")
        if field:
            yield path.stem, field.contents()


def main():
    cases = json.loads((CHAT / "cases.json").read_text())
    own = sorted((CHAT / "templates").glob("*.jinja"))
    rendered = {
        path.stem: {
            name: render(path.read_text(), case, "<s>", "</s>") for name, case in cases.items()
        }
        for path in own
    }
    (CHAT / "rendered.json").write_text(json.dumps(rendered, ensure_ascii=False, indent=1) + "\n")

    others = dict(gguf_templates())
    for path in sorted((CACHE / "test-data/llama.cpp-templates").glob("*.jinja")):
        others[path.stem] = path.read_text()
    published = {}
    for name, source in others.items():
        published[name] = {}
        for case_name, case in cases.items():
            result = render(source, case, "<s>", "</s>")
            if isinstance(result, dict):
                result = "refused"
            elif result is not None:
                result = fnv(result)
            published[name][case_name] = result
    lines = [f" {json.dumps(name)}: {json.dumps(of)}" for name, of in published.items()]
    (CHAT / "published.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
