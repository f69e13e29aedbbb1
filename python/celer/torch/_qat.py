"""Quantization-aware training.

    prepared = celer.torch.prepare_qat(module.eval(), distill=True)
    prepared.calibrate(batches)                       # ranges; convert() here would be post-training quantization
    for x, y in data:                                 # then train it as any module
        loss = cross_entropy(prepared(x), y) + prepared.distillation()
        ...
    network = celer.torch.convert(prepared.eval())    # network.save("net.onnx"), network(x), network.session

A forward pass computes in celer's integer arithmetic, and gradients pass through roundings as if there were none. So the network
that convert() writes, with QuantizeLinear and DequantizeLinear around its operators, gives in celer the bits that the prepared
module gives in evaluation mode; convert() checks that.
"""
from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .._arguments import NotPickled, named
from .._session import InferenceSession, SessionOptions
from ._reader import Reader
from ._steps import Input, Step, Tensor
from ._writer import Writer


class Prepared(nn.Module):  # type: ignore[misc,unused-ignore]
    """A module whose forward pass computes in celer's integer arithmetic; prepare_qat() makes one. Train it as any other."""

    def __init__(self, module: nn.Module, distill: bool) -> None:
        super().__init__()
        reader = Reader(module)
        self._steps = nn.ModuleList(reader.steps)
        self._outputs, self._form = reader.outputs, reader.form
        self._calibrating = False
        self._last: tuple[Tensor, ...] = ()
        # Not among its own modules, so that it is neither trained nor saved.
        self._teacher = [copy.deepcopy(module).eval().requires_grad_(False)] if distill else []
        self._results: list[Tensor] = []
        self.train(module.training)

    def forward(self, *inputs: Tensor) -> Any:
        values: dict[Step, Tensor] = {}
        given = iter(inputs)
        count = sum(isinstance(step, Input) for step in self._steps)
        if len(inputs) != count:
            raise TypeError(f"the module takes {count} tensors, and {len(inputs)} were given")
        for step in self._steps:
            operands = [next(given)] if isinstance(step, Input) else [values[one] for one in step.sources]
            if self._calibrating:
                made = step._activated(step.float_of(*operands))
                if not step.shares_grid and not step.is_float:
                    step.observe(made, 0)
            else:
                made = step.fake(*operands)
            step.shape = tuple(made.shape)
            values[step] = made
        self._last = tuple(one.detach() for one in inputs)
        self._results = [values[step] for step in self._outputs]
        return self._results[0] if self._form is None else self._form(self._results)

    def calibrate(self, batches: Iterable[Any]) -> Prepared:
        """Takes the ranges of values from these inputs: tensors, or tuples whose first is the input, as a DataLoader gives them."""
        self._calibrating = True
        inputs = sum(isinstance(step, Input) for step in self._steps)
        count = 0
        try:
            with torch.no_grad():
                for batch in batches:
                    self(*([batch] if isinstance(batch, torch.Tensor) else batch[:inputs]))
                    count += 1
        finally:
            self._calibrating = False
        if not count:
            raise ValueError("there is no batch to calibrate with")
        return self

    def distillation(self, temperature: float = 2.0) -> Tensor:
        """How far the last forward pass is from what the module gave before it was quantized: a term for the loss.

        Of logits [rows, classes] it is the Kullback-Leibler divergence at this temperature, of anything else the mean square.
        """
        if not self._teacher:
            raise ValueError("there is no teacher; use prepare_qat(module, distill=True)")
        if not self._results:
            raise ValueError("there was no forward pass yet")
        with torch.no_grad():
            taught = self._teacher[0](*self._last)
        every = [taught] if self._form is None else list(taught)
        loss = torch.zeros(())
        for mine, wanted in zip(self._results, every):
            if mine.dim() == 2 and mine.shape[1] > 1:
                loss = loss + temperature**2 * F.kl_div(F.log_softmax(mine / temperature, 1), F.log_softmax(wanted / temperature, 1),
                                                        reduction="batchmean", log_target=True)
            else:
                loss = loss + F.mse_loss(mine, wanted)
        return loss


class Quantized(NotPickled):
    """A quantized network: a function of tensors that runs in celer, and an ONNX file. convert() makes one."""

    def __init__(self, data: bytes, form: Any, threads: int) -> None:
        self._data, self._form = data, form
        options = SessionOptions()
        options.integers = True
        options.intra_op_num_threads = threads
        self.session = InferenceSession(data, options)
        self._names = [port.name for port in self.session.get_inputs()]

    @property
    def onnx(self) -> bytes:
        """The file: opset 17, in QDQ form. Any runtime reads it; the same bits are celer's, with SessionOptions().integers."""
        return self._data

    def save(self, path: str | os.PathLike[str]) -> None:
        with open(path, "wb") as file:
            file.write(self._data)

    def __call__(self, *inputs: Tensor) -> Any:
        made = [torch.from_numpy(one) for one in self.session.run(None, dict(zip(self._names, (x.detach() for x in inputs))))]
        return made[0] if self._form is None else self._form(made)

    def __repr__(self) -> str:
        return f"<celer.torch.Quantized: {len(self._data):,} bytes>"


@named
def prepare_qat(module: nn.Module, *, distill: bool = False) -> Prepared:
    """A copy of a convolutional network for quantization-aware training.

    It must be one that torch.fx traces, of convolutions and linear layers (batch norms behind them become part of their weights),
    their sums and products, concatenations, pools and activations; what else there is, is named by a NotImplementedError. Weights
    get 8 bits with a scale for each output, activations 8 bits with one scale. distill: keeps the module as a teacher, for
    Prepared.distillation().
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module is a {type(module).__name__}, expected a torch.nn.Module")
    if any(one.device.type != "cpu" for one in module.parameters()):
        raise ValueError("the module is not on the CPU, where celer's integer arithmetic runs; call module.cpu() first")
    return Prepared(module, distill)


@named
def convert(prepared: Prepared, *, threads: int = 0) -> Quantized:
    """The network that a prepared module computes, in celer.

    It is run once with the inputs of the last forward pass: its results have the same bits, or this is a RuntimeError.
    """
    if not isinstance(prepared, Prepared):
        raise TypeError(f"prepared is a {type(prepared).__name__}, expected what prepare_qat() gives")
    if not prepared._last:
        raise ValueError("the module was not run yet; call calibrate() first")
    was_training = prepared.training
    prepared.eval()
    try:
        with torch.no_grad():
            expected = prepared(*prepared._last)
    finally:
        prepared.train(was_training)
    writer = Writer()
    inputs = [step for step in prepared._steps if isinstance(step, Input)]
    for step in prepared._steps:
        step.write(writer)
    outputs = [(writer.bytes_of[step] if step.is_float else writer.real(step, step.name + ".result"), step.shape) for step in prepared._outputs]
    network = Quantized(writer.model([(step.name, step.shape) for step in inputs], outputs), prepared._form, threads)
    made = network(*prepared._last)
    for one, other in zip(*([expected], [made]) if prepared._form is None else (expected, made)):
        if one.shape != other.shape or not torch.equal(one, other):
            far = (one - other).abs().max().item() if one.shape == other.shape else math.nan
            raise RuntimeError(f"the network's results differ from the module's by up to {far:g}: some operator stayed float")
    return network
