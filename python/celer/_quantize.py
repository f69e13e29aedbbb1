"""celer.quantize: the command with a progress bar."""
from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
from typing import Any

from ._core import Progress
from ._command import command, flags, operand

_PERCENT = re.compile(r"(\d{1,3}) %")
_DRAWING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def quantize(model: str | os.PathLike[str], output: str | os.PathLike[str], *, progress: bool = True, **options: Any) -> str:
    """Writes a smaller form of a model or a network, and gives what the command says about it.

    Arguments beside these are the flags of `celer quantize` with underscores: weights="q4_k_m", method="gptq",
    calibration="text.txt", tensor=["*.attn_v.weight=q6_k"], force=True; its `--help` lists them. An error is a ValueError with
    the command's own sentence.
    """
    arguments = command("quantize", operand("model", model), "-o", operand("output", output), *flags(options))
    # On a terminal the command draws how far it is.
    ours, theirs = pty.openpty()
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, text=True,
                               env=os.environ | {"COLUMNS": "100", "TERM": "dumb"})
    os.close(theirs)
    bar = Progress(progress, 100, "quantize")
    try:
        said = _follow(ours, bar)
        out = process.stdout.read() if process.stdout else ""
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        bar.close()
        os.close(ours)
        if process.stdout:
            process.stdout.close()
    if code != 0:
        lines = [line for line in said.splitlines() if line.strip()]
        error = next((i for i, line in enumerate(lines) if line.startswith("error: ")), 0)
        raise ValueError(" ".join(lines[error:][-5:]).removeprefix("error: ") or f"celer quantize ended with {code}")
    return (out + said).strip()


def _follow(terminal: int, bar: Progress) -> str:
    """Reads to the end; gives the lines that stayed."""
    raw = b""
    shown = 0
    while True:
        chunk = b""
        with contextlib.suppress(OSError):  # how a terminal says that the other end is closed
            chunk = os.read(terminal, 4096)
        if not chunk:
            break
        raw += chunk
        for match in _PERCENT.finditer(chunk.decode("utf-8", "replace")):
            done = min(int(match[1]), 100)
            while shown < done:
                bar.step()
                shown += 1
    text = _DRAWING.sub("", raw.decode("utf-8", "replace")).replace("\r\n", "\n")
    return "\n".join(line for line in (drawn.rsplit("\r", 1)[-1] for drawn in text.split("\n")) if not _PERCENT.search(line))
