"""PyTorch modules on celer's networks, for inference on the CPU.

    fast = celer.compile(module.eval(), example_inputs)
    fast = torch.compile(module.eval(), backend="celer", dynamic=False)

A module, or with torch.compile each graph that PyTorch finds in it, is exported to ONNX by PyTorch's own exporter and runs as a
celer.InferenceSession. Each new combination of shapes is exported once. What cannot be exported or run, and what differs from
PyTorch's result, stays with PyTorch, and a warning names it: a graph is cut around such operators, and what is between them runs in
celer. A call that records gradients stays with PyTorch, too.
"""
from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .._arguments import named
from .._session import InferenceSession, SessionOptions
from ._split import Frozen, split
from ._qat import Prepared, Quantized, convert, prepare_qat

__all__ = ["CelerWarning", "Compiled", "Prepared", "Quantized", "compile", "convert", "dynamo_backend", "prepare_qat"]

_MOST_SHAPES = 16
_TOLERANCE = 1e-3  # of the largest value; other orders of summation give about 1e-6, f16 about 1e-3


class CelerWarning(UserWarning):
    """Something stays with PyTorch."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Exporters talk at length; what fails is said in one sentence."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    native: Any = torch._C
    log = getattr(native, "_jit_onnx_log", None)  # with which the older exporter prints graphs, whatever its settings are
    if log is not None:
        native._jit_onnx_log = lambda *_: None
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        if log is not None:
            native._jit_onnx_log = log


def _sentence(error: BaseException) -> str:
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'it says nothing'}"


def _session(module: torch.nn.Module, inputs: Sequence[torch.Tensor], threads: int, quick: bool) -> InferenceSession:
    """The module as a network; inputs are called in0, in1, ... An error names what each exporter said. quick: by the quicker one."""
    names = [f"in{i}" for i in range(len(inputs))]
    ways = [name == "onnxscript" for name in ("onnxscript", "onnx") if importlib.util.find_spec(name)]
    if not ways:
        raise RuntimeError("PyTorch's exporters need the package onnxscript or onnx")
    if quick:
        ways = ways[-1:]
    options = SessionOptions()
    options.intra_op_num_threads = threads
    said = []
    with tempfile.TemporaryDirectory(prefix="celer-torch-") as folder:
        path = os.path.join(folder, "module.onnx")
        for dynamo in ways:
            try:
                with _quiet(), torch.no_grad():
                    torch.onnx.export(module, tuple(inputs), path, input_names=names, dynamo=dynamo, verbose=False)
                return InferenceSession(path, options)  # maps its weights, so that the file may go
            except Exception as error:
                said.append(_sentence(error))
    raise RuntimeError("; ".join(dict.fromkeys(said)))


class _Network:
    """A function of tensors, exported for one combination of shapes."""

    def __init__(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor], threads: int, quick: bool = False) -> None:
        with torch.no_grad():
            expected, self.form = pytree.tree_flatten(module(*inputs))
        for one in expected:
            if not isinstance(one, torch.Tensor):
                raise RuntimeError(f"it gives a {type(one).__name__}, and networks give tensors")
        self.session = _session(module, inputs, threads, quick)
        # An input that is an output, too, is called in1_orig by one exporter.
        self.used = {port.name: int(re.sub(r"^in(\d+).*", r"\1", port.name)) for port in self.session.get_inputs()}
        found = self._flat(inputs)
        if len(found) != len(expected):
            raise RuntimeError(f"its network has {len(found)} outputs, expected {len(expected)}")
        for i, (one, other) in enumerate(zip(found, expected)):
            if one.shape != other.shape or one.dtype != other.dtype:
                raise RuntimeError(f"output {i} of its network is {one.dtype} {list(one.shape)}, expected {other.dtype} {list(other.shape)}")
            if one.numel() == 0:
                continue
            far = (one.double() - other.double()).abs().max().item()
            if not far <= _TOLERANCE * max(other.double().abs().max().item(), 1e-6):
                raise RuntimeError(f"output {i} of its network differs from PyTorch's by {far:g}")

    def _flat(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        feed = {name: inputs[i].detach() for name, i in self.used.items()}
        return [torch.from_numpy(one) for one in self.session.run(None, feed)]

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Any:
        return pytree.tree_unflatten(self._flat(inputs), self.form)


class Compiled(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """A module that runs in celer where it can; compile() makes it. .fallbacks names what stays with PyTorch."""

    def __init__(self, module: torch.nn.Module, threads: int = 0, name: str = "") -> None:
        super().__init__()
        self.module = module
        self.name = name or type(module).__name__
        self.threads = threads
        self.fallbacks: list[str] = []
        self._networks: dict[Any, Callable[[Sequence[torch.Tensor]], Any] | None] = {}
        self._is_part = False
        self._versions: list[int] = []

    @property
    def in_celer(self) -> bool:
        """Whether some combination of shapes runs there."""
        return any(network is not None for network in self._networks.values())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        network = self._network(args) if not kwargs else None
        return self.module(*args, **kwargs) if network is None else network(args)

    def _network(self, args: tuple[Any, ...]) -> Callable[[Sequence[torch.Tensor]], Any] | None:
        if self.module.training or not args or not all(isinstance(one, torch.Tensor) and one.device.type == "cpu" for one in args):
            return None
        weights = [*self.module.parameters(), *self.module.buffers()]
        if torch.is_grad_enabled() and any(one.requires_grad for one in (*args, *weights)):
            return None
        versions = [one._version for one in weights]
        if versions != self._versions:  # weights were changed: what was exported is old
            self._networks.clear()
            self._versions = versions
        key = tuple((one.shape, one.dtype) for one in args)
        if key not in self._networks:
            if len(self._networks) >= _MOST_SHAPES:
                self._say(f"{self.name} was called with more than {_MOST_SHAPES} combinations of shapes; further ones stay with PyTorch")
                return None
            self._networks[key] = self._make(args)
        return self._networks[key]

    def _say(self, what: str) -> None:
        if what not in self.fallbacks:
            self.fallbacks.append(what)
            warnings.warn(what, CelerWarning, stacklevel=4)

    def _make(self, args: tuple[Any, ...]) -> Callable[[Sequence[torch.Tensor]], Any] | None:
        try:
            return _Network(self.module, args, self.threads)
        except Exception as error:
            said = str(error) if type(error) is RuntimeError else _sentence(error)
        parts = None if self._is_part else self._cut(args)
        if parts is None:
            self._say(f"{self.name} stays with PyTorch: {said}")
            return None
        graph, staying = parts
        self._say(f"{self.name} is cut into parts: {', '.join(staying) or 'nothing'} stays with PyTorch: {said}")
        return lambda inputs: graph(*inputs)

    def _cut(self, args: tuple[Any, ...]) -> tuple[torch.fx.GraphModule, list[str]] | None:
        """The module with the parts that run in celer."""
        def wrap(part: torch.nn.Module, name: str) -> Compiled:
            made = Compiled(part, self.threads, name)
            made._is_part = True
            made.eval()
            return made

        def check(one: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> None:
            _Network(one, inputs, self.threads, quick=True)

        try:
            graph = _traced(self.module)
            found = split(graph, args, check, wrap)
            if found is None:
                return None
            with torch.no_grad(), warnings.catch_warnings(record=True):
                found[0](*args)  # makes its networks
        except Exception:
            return None
        parts = [one for one in found[0].modules() if isinstance(one, Compiled)]
        return found if any(one.in_celer for one in parts) else None


@named
def compile(module: torch.nn.Module, example_inputs: Any = None, *, threads: int = 0) -> Compiled:
    """The module for inference in celer, a torch.nn.Module itself.

    example_inputs: a tensor or a tuple of tensors to export it with now; without them it is exported at its first call. It is for
    calls under torch.no_grad() or torch.inference_mode(): others run in PyTorch, as do those in training mode. threads 0: as many
    as this process may use.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module is a {type(module).__name__}, expected a torch.nn.Module")
    if module.training:
        raise ValueError("the module is in training mode, which networks for inference have not; call module.eval() first")
    compiled = Compiled(module, threads)
    compiled.eval()
    if example_inputs is not None:
        given = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
        for one in given:
            if not isinstance(one, torch.Tensor):
                raise TypeError(f"example_inputs holds a {type(one).__name__}, expected tensors")
        with torch.no_grad():
            compiled(*given)
    return compiled


def _traced(module: torch.nn.Module) -> torch.fx.GraphModule:
    """A module as a graph whose weights are its attributes."""
    if isinstance(module, Frozen) and isinstance(module.graph, torch.fx.GraphModule):
        graph = torch.fx.GraphModule(module.graph, copy.deepcopy(module.graph.graph))
        inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        for at in module.places:
            name = f"kept{at}"
            graph.register_buffer(name, getattr(module, name), persistent=False)
            with graph.graph.inserting_before(inputs[at]):
                inputs[at].replace_all_uses_with(graph.graph.get_attr(name))
            graph.graph.erase_node(inputs[at])
        graph.recompile()
        return graph.eval()
    return torch.fx.symbolic_trace(module)


def dynamo_backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
    """The backend "celer" of torch.compile. Use it with dynamic=False: sizes that are symbols stay with PyTorch."""
    operators = {getattr(node.target, "__name__", str(node.target)) for node in graph.graph.nodes if node.op.startswith("call_")}
    name = f"a graph with {', '.join(sorted(operators)[:8])}"
    weights = {i for i, one in enumerate(example_inputs) if isinstance(one, torch.nn.Parameter)}
    compiled: list[Compiled] = []
    kept: dict[int, torch.Tensor] = {}

    def run(*args: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in args):
            return graph(*args)
        if not compiled or any(kept[i] is not args[i] for i in weights):
            kept.clear()
            kept.update({i: args[i] for i in weights})
            compiled[:] = [Compiled(Frozen(graph, kept, len(args)).eval(), name=name).eval()]
        return compiled[0](*(one for i, one in enumerate(args) if i not in weights))

    return torch._dynamo.disable(run)  # type: ignore[no-any-return,unused-ignore]
