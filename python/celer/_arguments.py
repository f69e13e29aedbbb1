"""Keyword arguments that do not exist are errors that name what does, and what cannot be pickled says why."""
from __future__ import annotations

import difflib
import functools
import html
import inspect
import logging
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, NoReturn, ParamSpec, TypeVar

from . import _celer

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


def table(title: str, rows: Mapping[str, object]) -> str:
    """What a notebook shows."""
    cells = "".join(f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{html.escape(title)}</caption>{cells}</table>"


def several(where: str, value: object) -> Iterable[Any]:
    """A list, or whatever else gives items; a text is none."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        raise TypeError(f"{where} is {value!r}, expected a list")
    return value


def only(where: str, value: object, allowed: tuple[object, ...], why: str) -> None:
    """Refuses a value that would have to mean something."""
    if value not in allowed:
        raise NotImplementedError(f"{where}={value!r} is not supported: {why}")


def whole(where: str, value: Any, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    """An integer of Python or numpy."""
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{where} is {value!r}, expected a whole number") from None
    if not low <= found <= high:
        raise ValueError(f"{where} is {found}, expected {low} to {high}")
    return found


def number(where: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{where} is {value!r}, expected a number")
    found = float(value)
    if not low <= found <= high:
        raise ValueError(f"{where} is {value}, expected {low:g} to {high:g}")
    return found


def token_ids(where: str, values: Iterable[Any]) -> list[int]:
    try:
        found = list(map(operator.index, values))
    except TypeError:
        raise TypeError(f"{where} is {repr(values)[:80]}, expected a text, or token ids, which are whole numbers") from None
    for one in (min(found, default=0), max(found, default=0)):
        whole(f"a token of {where}", one, -(2**31), 2**31 - 1)
    return found


def prompt_ids(where: str, values: Iterable[Any]) -> list[int]:
    """Of at least one token: a text may be empty, because the model may have a token that begins it."""
    found = token_ids(where, values)
    if not found:
        raise ValueError(f"{where} is empty, expected at least one token")
    return found


def text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{where} is {value!r}, expected a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} has half of a surrogate pair at {error.start}, which is no character") from None
    return value


def path(where: str, value: Any) -> str:
    try:
        found: str = os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{where} is {value!r}, expected a path") from None
    if "\0" in found:
        raise ValueError(f"{where} is {found!r}, and no path has a zero byte")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} is {found!r}, which is not UTF-8; rename it") from None
    return found


_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def pass_messages() -> None:
    """What the library had to say, to the logger "celer"."""
    for level, message in _celer.messages():
        logging.getLogger("celer").log(_LEVELS[level], "%s", message)


def strings(where: str, value: str | Iterable[str] | None) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise TypeError(f"{where} is {value!r}, expected a string, or several")
    found = [value] if isinstance(value, str) else list(value)
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"{where} holds {one!r}, expected strings")
        text(where, one)
    return found


def mapping_of(where: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{where} is {value!r}, expected a dict")
    return value
