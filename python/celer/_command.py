"""The program celer as a child process: it has signals and memory of its own."""
from __future__ import annotations

import sys
from collections.abc import Mapping


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "celer", *args]


def flags(options: Mapping[str, object]) -> list[str]:
    """{"kv_memory": "4GiB", "quiet": True} as flags; lists are repeated; None and False are left out."""
    found: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            found.append(flag)
        elif isinstance(value, (list, tuple)):
            for one in value:
                found += [flag, str(one)]
        elif value is not None and value is not False:
            found += [flag, str(value)]
    return found
