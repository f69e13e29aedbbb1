"""Makes the operators of quantization-aware training of the nodes that torch.fx finds in a module."""
from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ._steps import Add, AveragePool, Cat, Clip, Flatten, Function, Input, MaxPool, Mul, Nodes, Product, Step, Tensor, pair

_SIGMOID: Nodes = [("Sigmoid", ["x"], {})]
_GELU: Nodes = [
    ("Div", ["x", str(math.sqrt(2))], {}), ("Erf", ["0."], {}), ("Add", ["1.", "1"], {}), ("Mul", ["x", "2."], {}),
    ("Mul", ["3.", "0.5"], {})]


def _function_of(layer: Any) -> tuple[Callable[[Tensor], Tensor], Nodes] | None:
    """An activation that becomes a table."""
    if isinstance(layer, nn.SiLU):
        return F.silu, [*_SIGMOID, ("Mul", ["x", "0."], {})]
    if isinstance(layer, nn.Sigmoid):
        return torch.sigmoid, _SIGMOID
    if isinstance(layer, nn.Tanh):
        return torch.tanh, [("Tanh", ["x"], {})]
    if isinstance(layer, nn.Hardswish):
        return F.hardswish, [("HardSwish", ["x"], {})]
    if isinstance(layer, nn.Hardsigmoid):
        return F.hardsigmoid, [("HardSigmoid", ["x"], {"alpha": 1 / 6, "beta": 0.5})]
    if isinstance(layer, nn.GELU) and layer.approximate == "none":
        return F.gelu, _GELU
    if isinstance(layer, nn.LeakyReLU):
        slope = float(layer.negative_slope)
        return lambda x: F.leaky_relu(x, slope), [("LeakyRelu", ["x"], {"alpha": slope})]
    if isinstance(layer, nn.ELU):
        alpha = float(layer.alpha)
        return lambda x: F.elu(x, alpha), [("Elu", ["x"], {"alpha": alpha})]
    return None


def _clip_of(layer: Any) -> Clip | None:
    if isinstance(layer, nn.ReLU6):
        return 0.0, 6.0
    if isinstance(layer, nn.ReLU):
        return 0.0, math.inf
    if isinstance(layer, nn.Hardtanh):
        return float(layer.min_val), float(layer.max_val)
    return None


# What functions and methods of tensors stand for.
_ACTIVATIONS: dict[Any, Callable[[], Any]] = {
    F.relu: nn.ReLU, torch.relu: nn.ReLU, "relu": nn.ReLU, "relu_": nn.ReLU, F.relu6: nn.ReLU6, F.silu: nn.SiLU, F.gelu: nn.GELU,
    torch.sigmoid: nn.Sigmoid, F.sigmoid: nn.Sigmoid, "sigmoid": nn.Sigmoid, torch.tanh: nn.Tanh, F.tanh: nn.Tanh, "tanh": nn.Tanh,
    F.hardswish: nn.Hardswish, F.hardsigmoid: nn.Hardsigmoid}
_ADDS = (operator.add, operator.iadd, torch.add, "add", "add_")
_MULS = (operator.mul, operator.imul, torch.mul, "mul", "mul_")
_FLATTENS = (torch.flatten, "flatten", "view", "reshape", torch.reshape)
_SIZES = ("size", getattr, operator.getitem)  # of the batch, for a view


class Reader:
    """Makes steps of the nodes that torch.fx finds."""

    def __init__(self, module: nn.Module) -> None:
        if not list(module.children()):
            module = nn.Sequential(module)  # a layer by itself, which torch.fx would look into
        try:
            self.graph = torch.fx.symbolic_trace(module)
        except Exception as error:
            raise NotImplementedError(f"the module cannot be traced by torch.fx: {str(error).splitlines()[0] if str(error) else error!r}") from None
        self.layers = dict(self.graph.named_modules())
        self.steps: list[Step] = []
        self.of: dict[Any, Step] = {}
        self.refused: list[str] = []
        self.outputs: list[Step] = []
        self.form: Any = None
        for node in self.graph.graph.nodes:
            self._read(node)
        if self.refused:
            raise NotImplementedError("quantization-aware training has no form of " + "; ".join(dict.fromkeys(self.refused)))

    def _read(self, node: Any) -> None:
        if node.op == "placeholder":
            self._add(node, Input(node.name), [])
        elif node.op == "output":
            self._end(node.args[0])
        elif node.op == "call_module":
            self._layer(node, self.layers[node.target])
        elif node.op in ("call_function", "call_method"):
            self._call(node)
        else:
            self._refuse(node, f"{node.op} {node.target}")

    def _refuse(self, node: Any, what: str) -> None:
        self.refused.append(f"{what} (at '{node.name}')")

    def _add(self, node: Any, step: Step, inputs: Sequence[Any]) -> None:
        if any(one not in self.of for one in inputs):
            if not self.refused:
                self._refuse(node, "an operation on what is not a tensor of the network")
            return
        step.sources = [self.of[one] for one in inputs]
        self.steps.append(step)
        self.of[node] = step

    def _alone(self, x: Any) -> bool:
        """A value has one reader, and what it is another name of has no other."""
        while len(x.users) == 1:
            if self.of[x].name == x.name:
                return True
            x = x.args[0]
        return False

    def _activate(self, node: Any, layer: Any) -> bool:
        clip, function = _clip_of(layer), _function_of(layer)
        source = self.of.get(node.args[0])
        if clip is not None and source is not None:
            if not self._alone(node.args[0]) or source.shares_grid or source.clip is not None or isinstance(source, (Input, Function)):
                low, high = clip
                nodes: Nodes = [("Relu", ["x"], {})] if low == 0 and math.isinf(high) else [("Clip", ["x", str(low), str(high)], {})]
                self._add(node, Function(node.name, lambda x: torch.clamp(x, low, high), nodes), [node.args[0]])
            else:
                source.clip = clip
                self.of[node] = source
            return True
        if function is None:
            return False
        self._add(node, Function(node.name, *function), [node.args[0]])
        return True

    def _layer(self, node: Any, layer: Any) -> None:
        x = node.args[0] if node.args else None
        if isinstance(layer, (nn.Identity, nn.Dropout, nn.Dropout2d)):
            if x in self.of:
                self.of[node] = self.of[x]
        elif isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros" or isinstance(layer, nn.Linear):
            try:
                self._add(node, Product(node.name, layer), [x])
            except NotImplementedError as error:
                self._refuse(node, str(error))
        elif isinstance(layer, (nn.BatchNorm2d, nn.BatchNorm1d)) and layer.running_var is not None:
            source = self.of.get(x)
            if not isinstance(source, Product) or not self._alone(x) or source.clip is not None:
                self._refuse(node, f"{type(layer).__name__} that does not follow a convolution or a linear layer")
                return
            source.fold(layer)
            self.of[node] = source
        elif isinstance(layer, nn.MaxPool2d) and not layer.ceil_mode and not layer.return_indices:
            self._add(node, MaxPool(node.name, kernel_size=pair(layer.kernel_size), stride=pair(layer.stride or layer.kernel_size),
                                     padding=pair(layer.padding), dilation=pair(layer.dilation)), [x])
        elif isinstance(layer, nn.AvgPool2d) and not layer.ceil_mode and layer.divisor_override is None and (
                layer.count_include_pad or pair(layer.padding) == (0, 0)):
            self._add(node, AveragePool(node.name, pair(layer.kernel_size), pair(layer.stride or layer.kernel_size),
                                         pair(layer.padding), True), [x])
        elif isinstance(layer, nn.AdaptiveAvgPool2d) and pair(layer.output_size) == (1, 1):
            self._add(node, AveragePool(node.name, None, (1, 1), (0, 0), True), [x])
        elif isinstance(layer, nn.Flatten) and layer.start_dim == 1 and layer.end_dim == -1:
            self._add(node, Flatten(node.name), [x])
        elif not self._activate(node, layer):
            self._refuse(node, str(layer))

    def _call(self, node: Any) -> None:
        target, args = node.target, node.args
        if target in _ADDS + _MULS:
            if len(args) != 2 or node.kwargs or any(one not in self.of for one in args):
                self._refuse(node, f"{_name(target)} of anything but two tensors of the network")
            else:
                self._add(node, (Add if target in _ADDS else Mul)(node.name), args)
        elif target is torch.cat:
            dim = node.kwargs.get("dim", args[1] if len(args) > 1 else 0)
            self._add(node, Cat(node.name, int(dim)), args[0])
        elif target in _FLATTENS and self._flattens(target, args[1:], node.kwargs):
            self._add(node, Flatten(node.name), args[:1])
        elif target in ("mean", torch.mean) and sorted(one % 4 for one in self._dims(node)) == [2, 3]:
            keeps = bool(node.kwargs.get("keepdim", args[2] if len(args) > 2 else False))
            self._add(node, AveragePool(node.name, None, (1, 1), (0, 0), keeps), args[:1])
        elif target is F.adaptive_avg_pool2d and pair(args[1] if len(args) > 1 else node.kwargs["output_size"]) == (1, 1):
            self._add(node, AveragePool(node.name, None, (1, 1), (0, 0), True), args[:1])
        elif target is F.max_pool2d and not node.kwargs.get("ceil_mode"):
            given = dict(zip(("kernel_size", "stride", "padding", "dilation"), args[1:])) | node.kwargs
            kernel = pair(given["kernel_size"])
            self._add(node, MaxPool(node.name, kernel_size=kernel, stride=pair(given.get("stride") or kernel),
                                     padding=pair(given.get("padding", 0)), dilation=pair(given.get("dilation", 1))), args[:1])
        elif target in (F.dropout, F.dropout2d, "contiguous", "clone"):
            if args[0] in self.of:
                self.of[node] = self.of[args[0]]
        elif target in _SIZES:
            pass  # a view that reads it says whether it is understood
        elif not (target in _ACTIVATIONS and self._activate(node, _ACTIVATIONS[target]())):
            self._refuse(node, _name(target))

    @staticmethod
    def _flattens(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        if target in (torch.flatten, "flatten"):
            return (args[0] if args else kwargs.get("start_dim", 0)) == 1 and len(args) < 2 and kwargs.get("end_dim", -1) == -1
        sizes = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
        return len(sizes) == 2 and sizes[1] == -1

    @staticmethod
    def _dims(node: Any) -> list[int]:
        dims = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else ())
        return [dims] if isinstance(dims, int) else list(dims)

    def _end(self, result: Any) -> None:
        several = isinstance(result, (tuple, list))
        self.form = type(result) if several else None
        for one in result if several else [result]:
            if one not in self.of:
                self.refused.append(f"a result that is {one!r}")
                continue
            step = self.of[one]
            self.outputs.append(step)
            # The last layer's sums become floats without being rounded to bytes.
            step.is_float = isinstance(step, Product) and step.conv is None and step.clip is None and self._alone(one)
        if any(sum(step is other for other in self.outputs) > 1 for step in self.outputs):
            self.refused.append("a result that is given twice")


def _name(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))
