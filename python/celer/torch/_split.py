"""Graphs of which celer runs a part: cut where an operator has to stay with PyTorch."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner

_CALLS = ("call_function", "call_method", "call_module")


class Frozen(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """A graph whose weights are among its inputs, with them inside."""

    def __init__(self, graph: Callable[..., Any], kept: dict[int, torch.Tensor], count: int) -> None:
        super().__init__()
        self.graph, self.places, self.count = graph, sorted(kept), count
        for at, tensor in kept.items():
            self.register_buffer(f"kept{at}", tensor.detach(), persistent=False)

    def forward(self, *args: Any) -> Any:
        rest = iter(args)
        return self.graph(*(getattr(self, f"kept{at}") if at in self.places else next(rest) for at in range(self.count)))


class _Recorder(torch.fx.Interpreter):  # type: ignore[misc,unused-ignore]
    """What each node gives."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph)
        self.values: dict[Any, Any] = {}

    def run_node(self, node: Any) -> Any:
        made = super().run_node(node)
        self.values[node] = made.clone() if isinstance(made, torch.Tensor) else made  # a later node may write into it
        return made


def name_of(graph: torch.fx.GraphModule, node: Any) -> str:
    if node.op == "call_module":
        return type(graph.get_submodule(node.target)).__name__
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", node.target))


def _alone(graph: torch.fx.GraphModule, node: Any, values: dict[Any, Any]) -> tuple[torch.fx.GraphModule, list[torch.Tensor]] | None:
    """The node as a network by itself, with its inputs; None: it has an input that is no tensor of 32 bits or integers."""
    one = torch.fx.Graph()
    of: dict[Any, Any] = {}
    inputs: list[torch.Tensor] = []
    for source in node.all_input_nodes:
        value = values.get(source)
        if not isinstance(value, torch.Tensor) or value.is_complex():
            return None
        if source.op == "get_attr":
            of[source] = one.get_attr(source.target)
        else:
            of[source] = one.placeholder(source.name)
            inputs.append(value)
    one.output(one.node_copy(node, lambda source: of[source]))
    return (torch.fx.GraphModule(graph, one), inputs) if inputs else None


def split(graph: torch.fx.GraphModule, args: Sequence[Any], check: Callable[[torch.nn.Module, Sequence[torch.Tensor]], None],
          wrap: Callable[[torch.nn.Module, str], torch.nn.Module]) -> tuple[torch.fx.GraphModule, list[str]] | None:
    """The graph with what runs in celer wrapped, and the names of the operators that stay; None: all would stay.

    check() raises if a network cannot run. Each operator is tried by itself with the values that it gets from these arguments.
    """
    with torch.no_grad():
        recorder = _Recorder(graph)
        recorder.run(*args)
    runs: set[Any] = set()
    tried: dict[Any, bool] = {}
    staying: list[str] = []
    for node in graph.graph.nodes:
        if node.op not in _CALLS:
            continue
        values = recorder.values
        sizes = tuple((values[one].shape, values[one].dtype) if isinstance(values[one], torch.Tensor) else one for one in node.all_input_nodes)
        key = (node.op, node.target, sizes, str(node.args), str(node.kwargs))
        if key not in tried:
            tried[key] = isinstance(values[node], torch.Tensor) and _works(_alone(graph, node, values), check)
        if tried[key]:
            runs.add(node)
        else:
            staying.append(name_of(graph, node))

    class Support:
        def is_node_supported(self, _: Any, node: Any) -> bool:
            return node in runs

    if not runs:
        return None
    partitioner = CapabilityBasedPartitioner(graph, Support(), allows_single_node_partition=True)
    fused = partitioner.fuse_partitions(partitioner.propose_partitions(), prefix="celer_part_")
    for node in list(fused.graph.nodes):
        if node.op != "call_module" or not str(node.target).startswith("celer_part_"):
            continue
        part = fused.get_submodule(node.target)
        kept = {i: _attribute(fused, one.target) for i, one in enumerate(node.args) if getattr(one, "op", "") == "get_attr"}
        operators = sorted({name_of(part, one) for one in part.graph.nodes if one.op in _CALLS})
        wrapped = wrap(Frozen(part, kept, len(node.args)).eval(), f"a part with {', '.join(operators[:8])}")
        fused.add_submodule(node.target, wrapped)
        node.args = tuple(one for i, one in enumerate(node.args) if i not in kept)
    fused.recompile()
    return fused, list(dict.fromkeys(staying))


def _attribute(graph: torch.fx.GraphModule, target: str) -> torch.Tensor:
    owner, _, name = target.rpartition(".")
    made: torch.Tensor = getattr(graph.get_submodule(owner), name)
    return made


def _works(alone: tuple[torch.fx.GraphModule, list[torch.Tensor]] | None,
           check: Callable[[torch.nn.Module, Sequence[torch.Tensor]], None]) -> bool:
    if alone is None:
        return False
    try:
        check(alone[0].eval(), alone[1])
    except Exception:
        return False
    return True
