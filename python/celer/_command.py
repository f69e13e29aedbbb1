"""The program celer as a child process: it has signals and memory of its own."""
from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ._arguments import path


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "celer", *args]


def operand(where: str, value: Any) -> str:
    """A path or a name, which is no flag even if it looks like one."""
    found = path(where, value)
    return "./" + found if found.startswith("-") else found


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
