"""Keyword arguments that do not exist are errors that name what does, and what cannot be pickled says why."""
from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def unknown(where: str, name: str, known: Iterable[str]) -> TypeError:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(names)}"
    return TypeError(f"{where} has no argument '{name}'; {hint}")


def named(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose error about an unknown keyword argument names those that exist."""
    parameters = inspect.signature(function).parameters
    known = [name for name, parameter in parameters.items() if parameter.kind != parameter.POSITIONAL_ONLY and name != "self"]
    where = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise unknown(where, name, known)
        return function(*args, **kwargs)

    return checked


class NotPickled:
    """A base for what owns threads and memory of the library."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: it owns threads and memory of this process; "
                        "make it in the process that uses it")


def only(where: str, value: object, allowed: tuple[object, ...], why: str) -> None:
    """Refuses a value that would have to mean something."""
    if value not in allowed:
        raise NotImplementedError(f"{where}={value!r} is not supported: {why}")


def strings(where: str, value: str | Iterable[str] | None) -> list[str]:
    if value is None:
        return []
    found = [value] if isinstance(value, str) else list(value)
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"{where} holds {one!r}, expected strings")
    return found


def mapping_of(where: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{where} is {value!r}, expected a dict")
    return value
