"""celer's integer arithmetic on tensors: what its kernels for quantized networks compute, to the bit.

src/kernels/network/integer/requantize.h says the same in C++.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

LOW, HIGH = 0, 255  # activations are u8
_MOST_LEFT = 24
Bounds = tuple[int, int]


def f32(value: float) -> float:
    """The nearest number of 32 bits."""
    return float(np.float32(value))


@dataclass(frozen=True)
class Grid:
    """Bytes as numbers: real = (byte - zero) * scale."""

    scale: float  # of 32 bits
    zero: int

    @staticmethod
    def over(low: float, high: float) -> Grid:
        """The grid of a range; 0 is on it."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = max(f32((high - low) / (HIGH - LOW)), 1e-12)
        return Grid(f32(scale), min(max(round(-low / scale), LOW), HIGH))

    def byte(self, real: float) -> int:
        """As QuantizeLinear has it: one division of 32 bits, halves to even."""
        steps = float(np.rint(np.float64(np.float32(real) / np.float32(self.scale))))
        return int(min(max(steps + self.zero, LOW), HIGH))

    def bytes(self, real: torch.Tensor) -> torch.Tensor:
        """Likewise of a tensor; bytes as int64."""
        steps = torch.round(real.float() / torch.tensor(self.scale, dtype=torch.float32))
        return torch.clamp(torch.nan_to_num(steps, nan=float(-self.zero)), -1e6, 1e6).to(torch.int64).add(self.zero).clamp(LOW, HIGH)

    def real(self, values: torch.Tensor) -> torch.Tensor:
        """What bytes stand for, as DequantizeLinear has it."""
        return (values - self.zero).float() * torch.tensor(self.scale, dtype=torch.float32)

    def bounds(self, clip: tuple[float, float] | None) -> Bounds:
        """What a byte may be behind an activation that clips."""
        if clip is None:
            return LOW, HIGH
        low = self.byte(clip[0]) if math.isfinite(clip[0]) else LOW
        return low, self.byte(clip[1]) if math.isfinite(clip[1]) else HIGH


@dataclass(frozen=True)
class Factors:
    """Real factors as a multiplier of 31 bits and two shifts each."""

    multiplier: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor

    @staticmethod
    def of(factors: NDArray[np.float64]) -> Factors:
        if not (np.isfinite(factors).all() and (factors >= 0).all()):
            raise ValueError("a scale is negative or not finite")
        fraction, exponent = np.frexp(factors)
        multiplier = np.rint(np.ldexp(fraction, 31)).astype(np.int64)
        over = multiplier == 1 << 31
        multiplier[over] >>= 1
        exponent = exponent.astype(np.int64) + over
        if (exponent >= _MOST_LEFT).any():
            raise ValueError(f"a result's scale is {float(factors.max()):g} times smaller than that of its sum, which integers cannot express")
        left = np.where(exponent >= 0, exponent + 1, 0)
        right = np.where(exponent >= 0, 1, -exponent)
        multiplier = np.where(right > 62, 0, np.where(right > 31, multiplier >> np.maximum(right - 31, 0).clip(0, 62), multiplier))
        return Factors(*(torch.from_numpy(np.ascontiguousarray(one)) for one in (multiplier, left, right.clip(1, 31))))

    def shaped(self, shape: tuple[int, ...]) -> Factors:
        return Factors(self.multiplier.view(shape), self.left.view(shape), self.right.view(shape))

    def scale(self, sums: torch.Tensor) -> torch.Tensor:
        """Sums times the factors, rounded once, ties up."""
        wide = torch.clamp(torch.bitwise_left_shift(sums, self.left), -2**31, 2**31 - 1)
        half = torch.bitwise_left_shift(torch.ones_like(self.right), 30 + self.right)
        return torch.bitwise_right_shift(wide * self.multiplier + half, 31 + self.right)


def to_bytes(scaled: torch.Tensor, grid: Grid, bounds: Bounds) -> torch.Tensor:
    return (scaled + grid.zero).clamp(*bounds)


def add_bytes(a: torch.Tensor, b: torch.Tensor, grids: tuple[Grid, Grid], to: Grid, bounds: Bounds) -> torch.Tensor:
    """The sum of two tensors of bytes, with factors of 15 bits."""
    first, second = grids[0].scale / to.scale, grids[1].scale / to.scale
    shift = 15 - math.frexp(max(first, second))[1]
    if not 1 <= shift <= 30:
        raise ValueError(f"the terms of a sum are {max(first, second):g} times coarser than its result, which integers cannot express")
    factors = [min(int(np.rint(math.ldexp(one, shift))), 32767) for one in (first, second)]
    start = (1 << (shift - 1)) - grids[0].zero * factors[0] - grids[1].zero * factors[1]
    return to_bytes(torch.bitwise_right_shift(a * factors[0] + b * factors[1] + start, torch.tensor(shift)), to, bounds)


@dataclass(frozen=True)
class Weights:
    """Weights as integers with a scale for each output, and their bias as integers."""

    values: NDArray[np.int8]
    scales: NDArray[np.float32]
    bias: NDArray[np.int32]  # as it is stored, with the scale `bias_scales`
    bias_scales: NDArray[np.float32]

    @staticmethod
    def of(weight: NDArray[np.float32], bias: NDArray[np.float32], grid: Grid) -> Weights:
        """What inputs on this grid are multiplied by."""
        flat = weight.reshape(len(weight), -1)
        # A bias of up to 2^30 steps leaves room for the sum.
        least = np.maximum(np.abs(bias.astype(np.float64)) / grid.scale * 2.0**-30, 1e-20)
        scales = np.maximum(np.abs(flat).max(1) / np.float32(127), least.astype(np.float32)).astype(np.float32)
        values = np.clip(np.rint(flat / scales[:, None]), -127, 127).astype(np.int8).reshape(weight.shape)
        bias_scales = (scales * np.float32(grid.scale)).astype(np.float32)
        steps = np.rint(bias.astype(np.float64) / bias_scales.astype(np.float64))
        whole = np.clip(steps, -2.0**31 + 1, 2.0**31 - 1).astype(np.int32)
        return Weights(values, scales, whole, bias_scales)

    def check(self, name: str, grid: Grid) -> None:
        """Sums must fit 32 bits, whatever comes in."""
        size = np.abs(self.values.reshape(len(self.values), -1).astype(np.int64)).sum(1)
        if (512 * size + np.abs(self.sum_bias(grid)) > 0.99 * 2.0**31).any():
            raise NotImplementedError(f"'{name}' adds up more products than 32 bits hold")

    def bias_reals(self) -> NDArray[np.float64]:
        return self.bias.astype(np.float64) * self.bias_scales.astype(np.float64)

    def sum_bias(self, grid: Grid) -> NDArray[np.int64]:
        """The bias in the units of the sum."""
        return np.rint(self.bias_reals() / (grid.scale * self.scales.astype(np.float64))).astype(np.int64)

    def factors(self, grid: Grid, to: Grid) -> Factors:
        return Factors.of(grid.scale * self.scales.astype(np.float64) / to.scale)


def as_int(values: Any) -> torch.Tensor:
    """A tensor of whole numbers, as integers."""
    return torch.round(values.detach()).to(torch.int64)
