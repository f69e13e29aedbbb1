"""The operators of a network for quantization-aware training."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from .._session import GraphOptimizationLevel, InferenceSession, SessionOptions
from ._integers import Factors, Grid, Weights, add_bytes, as_int, to_bytes
from ._writer import Writer

_MOMENTUM = 0.05  # of ranges, while a module is trained
Tensor: TypeAlias = torch.Tensor
Clip = tuple[float, float]
Nodes = list[tuple[str, list[str], dict[str, Any]]]  # operator, inputs, attributes; "0." is the first one's result


class Through(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """A value with the gradient of another."""

    @staticmethod
    def forward(ctx: Any, real: Tensor, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _through(real: Tensor, value: Tensor) -> Tensor:
    made: Tensor = Through.apply(real, value)
    return made


class Step(nn.Module):  # type: ignore[misc,unused-ignore]
    """One operator; its result is on a grid, but for a product at the network's end."""

    shares_grid = False  # with its input

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.sources: list[Step] = []
        self.clip: Clip | None = None  # an activation behind it
        self.is_float = False
        self.register_buffer("range", torch.full((2,), math.nan, dtype=torch.float64))
        self.shape: tuple[int, ...] = ()  # of the last result

    @property
    def seen(self) -> bool:
        return not bool(torch.isnan(self.range[0]))

    def grid(self) -> Grid:
        if self.shares_grid:
            return self.sources[0].grid()
        if not self.seen:
            raise ValueError(f"the range of '{self.name}' is not known yet; call calibrate() with some inputs, or train first")
        return Grid.over(float(self.range[0]), float(self.range[1]))

    def grid_name(self) -> str:
        """Of the operator whose bytes these are."""
        return self.name

    def _activated(self, real: Tensor) -> Tensor:
        return real if self.clip is None else torch.clamp(real, *self.clip)

    def observe(self, real: Tensor, momentum: float) -> None:
        low, high = (float(one) for one in torch.aminmax(real.detach()))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"'{self.name}' gave what is not finite")
        now = torch.tensor([low, high], dtype=torch.float64)
        if not self.seen:
            self.range.copy_(now)
        elif momentum:
            self.range.lerp_(now, momentum)
        else:
            self.range.copy_(torch.stack([torch.minimum(self.range[0], now[0]), torch.maximum(self.range[1], now[1])]))

    def float_of(self, *inputs: Tensor) -> Tensor:
        """Without rounding."""
        raise NotImplementedError

    def bytes_of(self, *inputs: Tensor) -> Tensor:
        """The bytes of the result, of the bytes of the inputs."""
        raise NotImplementedError

    def fake(self, *inputs: Tensor) -> Tensor:
        """The real numbers that bytes stand for, with gradients."""
        real = self._activated(self.float_of(*inputs))
        if self.training and not self.shares_grid:
            self.observe(real, _MOMENTUM)
        return self.rounded(real, self.bytes_of(*(one.grid().bytes(x.detach()) for one, x in zip(self.sources, inputs))))

    def rounded(self, real: Tensor, values: Tensor) -> Tensor:
        grid = self.grid()
        low, high = grid.bounds(self.clip)
        inside = torch.clamp(real, (low - grid.zero) * grid.scale, (high - grid.zero) * grid.scale)
        return _through(inside, grid.real(values))

    def write(self, to: Writer) -> None:
        raise NotImplementedError


class Input(Step):
    def float_of(self, *inputs: Tensor) -> Tensor:
        return inputs[0]

    def fake(self, *inputs: Tensor) -> Tensor:
        if self.training:
            self.observe(inputs[0], _MOMENTUM)
        return self.rounded(inputs[0], self.grid().bytes(inputs[0]))

    def write(self, to: Writer) -> None:
        to.quantize(self, self.name)


class Product(Step):
    """A convolution or a fully connected layer."""

    def __init__(self, name: str, layer: Any) -> None:
        super().__init__(name)
        self.weight = nn.Parameter(layer.weight.detach().clone())
        outputs = self.weight.shape[0]
        self.has_bias = layer.bias is not None
        self.bias = nn.Parameter(layer.bias.detach().clone() if self.has_bias else torch.zeros(outputs))
        self.conv: dict[str, Any] | None = None
        if isinstance(layer, nn.Conv2d):
            self.conv = {"stride": layer.stride, "padding": _padding(layer), "dilation": layer.dilation, "groups": layer.groups}

    def fold(self, norm: Any) -> None:
        """A batch norm behind it."""
        factor = 1 / torch.sqrt(norm.running_var + norm.eps)
        if norm.weight is not None:
            factor = factor * norm.weight
        shift = -norm.running_mean * factor + (norm.bias if norm.bias is not None else 0)
        with torch.no_grad():
            self.weight.mul_(factor.view(-1, *[1] * (self.weight.dim() - 1)))
            self.bias.mul_(factor).add_(shift)
        self.has_bias = True

    def quantized(self) -> Weights:
        found = Weights.of(self.weight.detach().float().numpy(), self.bias.detach().float().numpy(), self.sources[0].grid())
        found.check(self.name, self.sources[0].grid())
        return found

    def _multiply(self, x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w) if self.conv is None else F.conv2d(x, w, **self.conv)

    def _channels(self, values: Tensor) -> Tensor:
        return values if self.conv is None else values.view(1, -1, 1, 1)

    def float_of(self, *inputs: Tensor) -> Tensor:
        return self._multiply(inputs[0], self.weight) + self._channels(self.bias)

    def fake(self, *inputs: Tensor) -> Tensor:
        # Of integers that floats hold: the sums are exact, and one product gives the values and the gradients.
        source, w = self.sources[0].grid(), self.quantized()
        scales = torch.from_numpy(w.scales)
        unit = torch.from_numpy(w.scales.astype(np.float64) * source.scale).float()
        exact = not self.training or 255 * float(np.abs(w.values.reshape(len(w.values), -1).astype(np.int64)).sum(1).max()) >= 2**24
        kind = torch.float64 if exact else torch.float32
        x = inputs[0] / source.scale
        steps = (source.bytes(inputs[0].detach()) - source.zero).to(kind)
        each = scales.view(-1, *[1] * (self.weight.dim() - 1))
        sums = self._multiply(_through(x.to(kind), steps), _through((self.weight / each).to(kind), torch.from_numpy(w.values).to(kind)))
        real = sums.float() * self._channels(unit) + self._channels(self.bias)
        if self.is_float:
            units = torch.tensor(source.scale, dtype=torch.float32) * scales
            bias = torch.from_numpy(w.bias_reals().astype(np.float32))
            return _through(real, as_int(sums).float() * units + bias)
        real = self._activated(real)
        if self.training:
            self.observe(real, _MOMENTUM)
        to = self.grid()
        factors = w.factors(source, to)
        whole = as_int(sums) + self._channels(torch.from_numpy(w.sum_bias(source)))
        if self.conv is not None:
            factors = factors.shaped((1, -1, 1, 1))
        return self.rounded(real, to_bytes(factors.scale(whole), to, to.bounds(self.clip)))

    def write(self, to: Writer) -> None:
        if self.conv is None and len(self.shape) != 2:
            raise NotImplementedError(f"'{self.name}' is a linear layer on {len(self.shape)} dimensions, expected rows of numbers; flatten them")
        w = self.quantized()
        x = to.real(self.sources[0])
        weight = to.stored(self.name + ".weight", w.values, w.scales)
        inputs = [x, weight]
        if self.has_bias or self.conv is None:
            inputs.append(to.stored(self.name + ".bias", w.bias, w.bias_scales))
        if self.conv is None:
            made = to.node("Gemm", inputs, self.name, self.shape, transB=1)
        else:
            (top, left), kernel = self.conv["padding"], list(self.weight.shape[2:])
            made = to.node("Conv", inputs, self.name, self.shape, kernel_shape=kernel, strides=list(self.conv["stride"]),
                           pads=[top, left, top, left], dilations=list(self.conv["dilation"]), group=self.conv["groups"])
        to.finish(self, made)


class Add(Step):
    def float_of(self, *inputs: Tensor) -> Tensor:
        return inputs[0] + inputs[1]

    def bytes_of(self, *inputs: Tensor) -> Tensor:
        to = self.grid()
        return add_bytes(inputs[0], inputs[1], (self.sources[0].grid(), self.sources[1].grid()), to, to.bounds(self.clip))

    def write(self, to: Writer) -> None:
        to.finish(self, to.node("Add", [to.real(one) for one in self.sources], self.name, self.shape))


class Mul(Step):
    def float_of(self, *inputs: Tensor) -> Tensor:
        return inputs[0] * inputs[1]

    def bytes_of(self, *inputs: Tensor) -> Tensor:
        to, (a, b) = self.grid(), (one.grid() for one in self.sources)
        factor = Factors.of(np.asarray([a.scale * b.scale / to.scale]))
        return to_bytes(factor.scale((inputs[0] - a.zero) * (inputs[1] - b.zero)), to, to.bounds(self.clip))

    def write(self, to: Writer) -> None:
        to.finish(self, to.node("Mul", [to.real(one) for one in self.sources], self.name, self.shape))


class Cat(Step):
    def __init__(self, name: str, dim: int) -> None:
        super().__init__(name)
        self.dim = dim

    def float_of(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, self.dim)

    def bytes_of(self, *inputs: Tensor) -> Tensor:
        to = self.grid()
        return torch.cat([to.bytes(one.grid().real(x)) for one, x in zip(self.sources, inputs)], self.dim).clamp(*to.bounds(self.clip))

    def write(self, to: Writer) -> None:
        to.finish(self, to.node("Concat", [to.real(one) for one in self.sources], self.name, self.shape, axis=self.dim))


class MaxPool(Step):
    shares_grid = True

    def __init__(self, name: str, **window: Any) -> None:
        super().__init__(name)
        self.window = window

    def float_of(self, *inputs: Tensor) -> Tensor:
        return F.max_pool2d(inputs[0], **self.window)

    def fake(self, *inputs: Tensor) -> Tensor:
        return self.float_of(*inputs)

    def write(self, to: Writer) -> None:
        (top, left), (high, wide) = self.window["padding"], self.window["dilation"]
        to.finish(self, to.node("MaxPool", [to.real(self.sources[0])], self.name, self.shape, kernel_shape=list(self.window["kernel_size"]),
                                strides=list(self.window["stride"]), pads=[top, left, top, left], dilations=[high, wide]))


class AveragePool(Step):
    """Over windows, or over the whole image."""

    def __init__(self, name: str, kernel: tuple[int, int] | None, stride: tuple[int, int], padding: tuple[int, int], keeps: bool) -> None:
        super().__init__(name)
        self.kernel, self.stride, self.padding, self.keeps = kernel, stride, padding, keeps

    def _sums(self, x: Tensor) -> tuple[Tensor, int]:
        if self.kernel is None:
            return x.sum((2, 3), keepdim=self.keeps), x.shape[2] * x.shape[3]
        made = F.avg_pool2d(x, self.kernel, self.stride, self.padding, divisor_override=1)
        return made, self.kernel[0] * self.kernel[1]

    def float_of(self, *inputs: Tensor) -> Tensor:
        sums, count = self._sums(inputs[0])
        return sums / count

    def bytes_of(self, *inputs: Tensor) -> Tensor:
        source, to = self.sources[0].grid(), self.grid()
        sums, count = self._sums((inputs[0] - source.zero).double())
        factor = Factors.of(np.asarray([source.scale / to.scale / count]))
        return to_bytes(factor.scale(as_int(sums)), to, to.bounds(self.clip))

    def write(self, to: Writer) -> None:
        x = to.real(self.sources[0])
        if self.kernel is not None:
            (top, left) = self.padding
            made = to.node("AveragePool", [x], self.name, self.shape, kernel_shape=list(self.kernel), strides=list(self.stride),
                           pads=[top, left, top, left], count_include_pad=1)
        elif self.keeps:
            made = to.node("GlobalAveragePool", [x], self.name, self.shape)
        else:
            made = to.node("ReduceMean", [x], self.name, self.shape, axes=[2, 3], keepdims=0)
        to.finish(self, made)


class Flatten(Step):
    """On bytes, which keep their grid."""

    shares_grid = True

    def float_of(self, *inputs: Tensor) -> Tensor:
        return inputs[0].flatten(1)

    def fake(self, *inputs: Tensor) -> Tensor:
        return self.float_of(*inputs)

    def grid_name(self) -> str:
        return self.sources[0].grid_name()

    def write(self, to: Writer) -> None:
        to.bytes_of[self] = to.node("Flatten", [to.bytes_of[self.sources[0]]], self.name + ".bytes", self.shape, is_bytes=True, axis=1)


class Function(Step):
    """A function of one number: a table of 256 bytes, which celer's own operators fill."""

    def __init__(self, name: str, function: Callable[[Tensor], Tensor], nodes: Nodes) -> None:
        super().__init__(name)
        self.function, self.nodes = function, nodes
        self._table: tuple[Grid, Grid, Tensor] | None = None

    def float_of(self, *inputs: Tensor) -> Tensor:
        return self.function(inputs[0])

    def table(self) -> Tensor:
        source, to = self.sources[0].grid(), self.grid()
        if self._table is None or self._table[:2] != (source, to):
            options = SessionOptions()
            options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
            writer = Writer()
            made = self._write(writer, "x", ())
            session = InferenceSession(writer.model([("x", (256,))], [(made, (256,))]), options)
            real = session.run(None, {"x": source.real(torch.arange(256)).numpy()})[0]
            self._table = source, to, to.bytes(torch.from_numpy(real))
        return self._table[2]

    def bytes_of(self, *inputs: Tensor) -> Tensor:
        return self.table()[inputs[0]].clamp(*self.grid().bounds(self.clip))

    def _write(self, to: Writer, x: str, shape: tuple[int, ...]) -> str:
        values = {"x": x}
        for i, (op, inputs, attributes) in enumerate(self.nodes):
            last = i == len(self.nodes) - 1
            operands = [values[one] if one in values else to.number(float(one)) for one in inputs]
            values[str(i) + "."] = to.node(op, operands, self.name if last else f"{self.name}.{i}", shape, **attributes)
        return values[f"{len(self.nodes) - 1}."]

    def write(self, to: Writer) -> None:
        to.finish(self, self._write(to, to.real(self.sources[0]), self.shape))


def pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _padding(layer: Any) -> tuple[int, int]:
    if layer.padding == "valid":
        return 0, 0
    if layer.padding == "same":
        sizes = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size)]
        if any(one % 2 for one in sizes):
            raise NotImplementedError("a convolution with padding='same' and an even kernel")
        return sizes[0] // 2, sizes[1] // 2
    return pair(layer.padding)
