#!/usr/bin/env python3
"""Fetches the templates of published models, for a wider comparison; nothing of them is kept in this repository.

  fetch_published_templates.py OUT && compare_transformers.py --renderer ... --templates OUT

They come with the source package of llama-cpp-python (its copy of llama.cpp, models/templates), through whatever
index pip is set up with. Each template has its model's own licence.
"""
import pathlib
import subprocess
import sys
import tarfile
import tempfile


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python",
                        "--dest", folder, "llama-cpp-python"], check=True)
        package = next(pathlib.Path(folder).glob("*.tar.gz"))
        count = 0
        with tarfile.open(package) as archive:
            for member in archive:
                if member.isfile() and "/models/templates/" in member.name and member.name.endswith(".jinja"):
                    (out / pathlib.PurePosixPath(member.name).name).write_bytes(archive.extractfile(member).read())
                    count += 1
    print("%d templates in %s" % (count, out))


if __name__ == "__main__":
    main()
