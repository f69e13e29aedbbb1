"""celer.limits: what is physically possible, as numbers, text, a table and a picture."""
from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from . import _celer
from ._arguments import named, number, path, text, whole


class Limits:
    """The least time a model can take on a machine: reading weights and KV, or arithmetic, whichever is slower."""

    def __init__(self, values: dict[str, Any], batch: int, weight_bits: float, kv_bits: float) -> None:
        self._values = values
        self.batch, self.weight_bits, self.kv_bits = batch, weight_bits, kv_bits
        self.model: str = values["model"]
        self.machine: str = values["machine"]
        self.parameters: int = values["parameters"]
        self.active_parameters: int = values["active_parameters"]
        self.weight_bytes: float = values["weight_bytes"]
        self.kv_bytes_per_token: float = values["kv_bytes_per_token"]
        # Of all sequences together, beside the weights; None: the weights alone do not fit.
        self.kv_capacity_tokens: int | None = values["kv_capacity_tokens"]
        self.read_bytes_per_s: float = values["read_bytes_per_s"]
        self.flops_per_s: float = values["flops_per_s"]
        self.prefill: list[dict[str, Any]] = values["prefill"]
        self.decode: list[dict[str, Any]] = values["decode"]

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together, at the first context."""
        return float(self.decode[0]["tokens_per_second"])

    @property
    def first_token_seconds(self) -> float:
        """Of the first prompt length."""
        return float(self.prefill[0]["seconds"])

    def to_dict(self) -> dict[str, Any]:
        return dict(self._values)

    def _title(self) -> str:
        several = f", {self.batch} sequences" if self.batch > 1 else ""
        return f"{self.model} on {self.machine}, {self.weight_bits:g}-bit weights, {self.kv_bits:g}-bit KV{several}"

    def _rows(self) -> list[tuple[str, str, str, str]]:
        rows = [("prefill", f"{one['tokens']} tokens", f"{one['seconds'] * 1e3:.2f} ms", one["bound_by"]) for one in self.prefill]
        rows += [("decode", f"context {one['context']}", f"{one['tokens_per_second']:.1f} tok/s", one["bound_by"]) for one in self.decode]
        return rows

    def __repr__(self) -> str:
        lines = [self._title()] + [f"  {phase:8} {what:16} {limit:>16}  {bound}" for phase, what, limit, bound in self._rows()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self._rows())
        return (f"<div><b>{html.escape(self._title())}</b><table><thead><tr><th>phase</th><th>of</th><th>limit</th><th>bound by</th></tr>"
                f"</thead><tbody>{rows}</tbody></table>{self._repr_svg_()}</div>")

    def _repr_svg_(self) -> str:
        """A bar for each decode step: how long weights, KV and arithmetic take."""
        width, height, left = 480, 26 * len(self.decode) + 24, 110
        longest = max(max(one["read_weights_seconds"] + one["read_kv_seconds"], one["compute_seconds"]) for one in self.decode)
        scale = (width - left - 10) / longest
        parts = []
        for i, one in enumerate(self.decode):
            y = 26 * i + 4
            weights, kv = one["read_weights_seconds"] * scale, one["read_kv_seconds"] * scale
            parts.append(f'<text x="0" y="{y + 13}">context {one["context"]}</text>')
            parts.append(f'<rect x="{left}" y="{y}" width="{weights:.1f}" height="12" fill="#4878a8"/>')
            parts.append(f'<rect x="{left + weights:.1f}" y="{y}" width="{kv:.1f}" height="12" fill="#88b0d8"/>')
            parts.append(f'<rect x="{left}" y="{y + 13}" width="{one["compute_seconds"] * scale:.1f}" height="6" fill="#c86848"/>')
        parts.append(f'<text x="{left}" y="{height - 6}">blue: reading weights, then KV; red: arithmetic; '
                     f'{longest * 1e3:.2f} ms at most</text>')
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
                f'{"".join(parts)}</svg>')


def _several(where: str, value: int | Sequence[int]) -> list[int]:
    found = list(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else [value]
    if not found:
        raise TypeError(f"{where} is empty, expected a whole number, or several")
    return [whole(where, one) for one in found]


@named
def limits(model: str, machine: str = "this", *, weight_bits: float = 16, kv_bits: float = 16, batch: int = 1,
           prompt: int | Sequence[int] = (128, 512, 2048), context: int | Sequence[int] = (128, 1024, 4096)) -> Limits:
    """What is possible for a model on a machine.

    model: a built-in name ("llama-3.1-8b"), a config.json, a folder that holds one, a GGUF file. machine: a built-in name
    ("rtx4090", "h200"), or "this", which is measured once and takes seconds. weight_bits may be fractional: 4.5 for q4_0.
    """
    bits = [number(where, value, 0.5, 64) for where, value in (("weight_bits", weight_bits), ("kv_bits", kv_bits))]
    values = _celer.limits(path("model", model), text("machine", machine), weight_bits=bits[0], kv_bits=bits[1], batch=whole("batch", batch, 1, 2**31),
                           prompts=_several("prompt", prompt), contexts=_several("context", context))
    return Limits(values, batch, weight_bits, kv_bits)
