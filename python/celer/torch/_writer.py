"""Quantized networks as ONNX, in QDQ form."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._integers import Grid

if TYPE_CHECKING:
    from ._steps import Step

_OPSET = 17


class Writer:
    """ONNX, by the package onnx."""

    def __init__(self) -> None:
        try:
            import onnx
        except ImportError:
            raise RuntimeError("a quantized network is written with the package onnx; install it") from None
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.bytes_of: dict[Step, str] = {}
        self.reads: dict[str, int] = {}

    def _type(self, name: str, shape: Sequence[int], is_bytes: bool = False) -> Any:
        kind = self.onnx.TensorProto.UINT8 if is_bytes else self.onnx.TensorProto.FLOAT
        dims: list[str | int | None] = ["batch", *shape[1:]] if len(shape) > 1 else list(shape)
        return self.onnx.helper.make_tensor_value_info(name, kind, dims)

    def constant(self, name: str, value: Any) -> str:
        if name not in self.constants:
            self.constants[name] = self.onnx.numpy_helper.from_array(np.asarray(value), name)
        return name

    def number(self, value: float) -> str:
        return self.constant(f"number {value!r}", np.float32(value))

    def node(self, op: str, inputs: list[str], name: str, shape: Sequence[int], is_bytes: bool = False, **attributes: Any) -> str:
        self.nodes.append(self.onnx.helper.make_node(op, inputs, [name], name=name, **attributes))
        if len(shape) > 1:
            self.values[name] = self._type(name, shape, is_bytes)
        return name

    def _grid(self, grid: Grid, name: str) -> list[str]:
        return [self.constant(name + ".scale", np.float32(grid.scale)), self.constant(name + ".zero", np.uint8(grid.zero))]

    def quantize(self, step: Step, real: str) -> None:
        grid = step.grid()
        self.bytes_of[step] = self.node("QuantizeLinear", [real, *self._grid(grid, step.name)], step.name + ".bytes", step.shape, True)

    def finish(self, step: Step, made: str) -> None:
        """What stands behind an operator: its activation, and the rounding."""
        if step.is_float:
            self.bytes_of[step] = made
            return
        if step.clip is not None:
            low, high = step.clip
            if low == 0 and math.isinf(high):
                made = self.node("Relu", [made], step.name + ".relu", step.shape)
            else:
                made = self.node("Clip", [made, self.number(low), self.number(high)], step.name + ".clip", step.shape)
        self.quantize(step, made)

    def real(self, step: Step, name: str = "") -> str:
        """A value for one reader."""
        values = self.bytes_of[step]
        self.reads[values] = self.reads.get(values, 0) + 1
        name = name or f"{values}.{self.reads[values]}"
        return self.node("DequantizeLinear", [values, *self._grid(step.grid(), step.grid_name())], name, step.shape)

    def stored(self, name: str, values: Any, scales: Any) -> str:
        inputs = [self.constant(name + ".whole", values), self.constant(name + ".scale", scales),
                  self.constant(name + ".zero", np.zeros(len(scales), values.dtype))]
        return self.node("DequantizeLinear", inputs, name, (), axis=0)

    def model(self, inputs: Sequence[tuple[str, Sequence[int]]], outputs: Sequence[tuple[str, Sequence[int]]]) -> bytes:
        helper = self.onnx.helper
        for name, _ in outputs:
            self.values.pop(name, None)
        graph = helper.make_graph(self.nodes, "quantized", [self._type(*one) for one in inputs], [self._type(*one) for one in outputs],
                                  list(self.constants.values()), value_info=list(self.values.values()))
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], producer_name="celer", ir_version=8)
        self.onnx.checker.check_model(made)
        return bytes(made.SerializeToString())
