#!/usr/bin/env python3
"""OpenAI's own Python client against a server that says it speaks the same.

    tools/openai_client.py           installs the client, pinned, into a virtual environment of the cache
    tools/openai_client.py URL       asks the server there; ends with 77 if there is no client
"""

import os
import pathlib
import subprocess
import sys
import venv

PACKAGE = "openai==3.57.0"
NO_CLIENT = 77


def folder():
    cache = os.environ.get("PACELINE_CACHE")
    if not cache:
        home = os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")
        cache = pathlib.Path(home) / "paceline"
    return pathlib.Path(cache) / "test-data" / PACKAGE.replace("==", "-")


def install():
    done = folder() / "done"
    if done.exists():
        return
    pip = [folder() / "bin/python", "-m", "pip", "install", "--quiet", PACKAGE]
    try:
        venv.create(folder(), with_pip=True, clear=True)
        subprocess.run(pip, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{PACKAGE} cannot be had, its test will be skipped: {error}", file=sys.stderr)
        return
    done.touch()


def ask(url):
    import openai
    from openai import DefaultHttpxClient, OpenAI

    # The server is here: no proxy is asked.
    http = DefaultHttpxClient(trust_env=False)
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120, http_client=http)
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    messages = [{"role": "user", "content": "Say a word about rivers."}]
    usual = {"model": model.id, "max_tokens": 16, "temperature": 0}

    # chat
    chat = client.chat.completions.create(messages=messages, **usual)
    (choice,) = chat.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = chat.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens <= 16
    assert chat._request_id and chat.id.endswith(chat._request_id)

    # streaming: the same text, and the usage at the end
    stream = client.chat.completions.create(
        messages=messages, stream=True, stream_options={"include_usage": True}, **usual
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == choice.message.content, (text, choice.message.content)
    last = chunks[-1]
    assert not last.choices and last.usage.completion_tokens == usage.completion_tokens
    assert last.usage.prompt_tokens_details.cached_tokens > 0

    # a stream that the client leaves
    with client.chat.completions.create(messages=messages, stream=True, model=model.id) as stream:
        next(iter(stream))

    # n, with a seed
    three = [
        client.chat.completions.create(
            messages=messages, n=3, model=model.id, max_tokens=12, temperature=1, seed=7
        )
        for _ in range(2)
    ]
    texts = [[c.message.content for c in answer.choices] for answer in three]
    assert texts[0] == texts[1] and len(set(texts[0])) > 1, texts
    assert [c.index for c in three[0].choices] == [0, 1, 2]

    # logprobs
    scored = client.chat.completions.create(
        messages=messages, logprobs=True, top_logprobs=3, **usual
    )
    content = scored.choices[0].logprobs.content
    assert "".join(t.token for t in content).startswith(scored.choices[0].message.content)
    for token in content:
        assert len(token.top_logprobs) == 3 and token.logprob == token.top_logprobs[0].logprob <= 0
        assert bytes(token.bytes).decode(errors="replace") == token.token

    # completions: texts and tokens, echo, log-probabilities, a stream
    fox = "The quick brown fox"
    one = client.completions.create(prompt=fox, logprobs=2, echo=True, **usual)
    (choice,) = one.choices
    assert choice.text.startswith(fox) and len(choice.text) > len(fox)
    lists = choice.logprobs
    assert lists.token_logprobs[0] is None and all(p <= 0 for p in lists.token_logprobs[1:])
    assert "".join(lists.tokens) == choice.text
    assert all(choice.text[i:].startswith(t) for i, t in zip(lists.text_offset, lists.tokens))
    two = client.completions.create(prompt=[fox, "Once upon a time"], **usual)
    assert [c.index for c in two.choices] == [0, 1]
    assert fox + two.choices[0].text == choice.text
    stream = client.completions.create(prompt=fox, stream=True, **usual)
    assert "".join(c.choices[0].text for c in stream) == two.choices[0].text
    assert client.completions.create(prompt=[1, 2, 3], **usual).usage.prompt_tokens == 3

    # stop
    word = two.choices[0].text.split()[2]
    stopped = client.completions.create(prompt=fox, stop=[word, "\n\n\n"], **usual).choices[0]
    assert stopped.finish_reason == "stop" and word not in stopped.text
    assert two.choices[0].text.startswith(stopped.text)

    # errors
    def fails(kind, param, **fields):
        try:
            client.chat.completions.create(**{"messages": messages, **usual, **fields})
        except kind as error:
            assert error.param == param, error
            return error
        raise AssertionError(f"{fields} was answered")

    fails(openai.BadRequestError, "temperature", temperature=-1)
    fails(openai.BadRequestError, "tools", tools=[{"type": "function", "function": {"name": "f"}}])
    fails(openai.BadRequestError, "messages[0].role", messages=[{"role": "narrator", "content": ""}])
    long = [{"role": "user", "content": "word " * 20_000}]
    error = fails(openai.BadRequestError, "prompt", messages=long)
    assert error.code == "context_length_exceeded"
    error = fails(openai.NotFoundError, "model", model="other")
    assert error.code == "model_not_found"
    print(f"{PACKAGE}: all answers are as expected")


def main():
    if len(sys.argv) == 1:
        return install()
    python = folder() / "bin/python"
    if pathlib.Path(sys.prefix) != folder():
        if not (folder() / "done").exists():
            print(f"{folder()} is not there: tools/openai_client.py makes it", file=sys.stderr)
            return NO_CLIENT
        return subprocess.run([python, __file__, sys.argv[1]]).returncode
    return ask(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
