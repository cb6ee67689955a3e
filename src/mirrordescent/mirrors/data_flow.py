"""The order of the weights along the data flow of a network, derived from its graph of operations.

Modules are registered in any order. The graph says which weights the input meets first, and which
ones the output has met last.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional as F

_RIGHT = {operator.matmul, torch.matmul, torch.mm, torch.bmm, "matmul", "mm", "bmm", "__matmul__"}
"""Products x @ W, in which the rows of W are inputs."""

_WEIGHTED = {
    *_RIGHT,
    F.linear,
    F.bilinear,
    F.embedding,
    F.conv1d,
    F.conv2d,
    F.conv3d,
    torch.einsum,
    torch.addmm,
    torch.baddbmm,
}
_TRANSPOSED = {"t", "transpose", "mT", "T", torch.t, torch.transpose, getattr}


class DataFlow(NamedTuple):
    """Positions of weights in a network, as names of parameters.

    Attributes:
        first: Weights before which the data meet no other weights.
        last: Weights after which the data meet no other weights.
        right: Weights W of products x @ W, which are stored as (inputs, outputs).
        left: Weights W of products x @ Wᵀ, which are stored as (outputs, inputs).
    """

    first: frozenset[str]
    last: frozenset[str]
    right: frozenset[str]
    left: frozenset[str]


def data_flow(model: nn.Module) -> DataFlow | None:
    """Return the data flow of a model, or None if torch.fx cannot trace it.

    Tracing runs the Python code of the model on a copy without values, so that the model does not
    change.

    >>> data_flow(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))).last
    frozenset({'2.weight'})
    """
    try:
        root = _copy_without_values(model)
        graph = _Tracer().trace(root)
    except Exception:  # tracing runs the code of the model, which may raise anything
        return None
    names = {id(p): name for name, p in root.named_parameters() if p.ndim > 1}
    uses = {node: dict(_weights_of(node, root, names)) for node in graph.nodes}
    return DataFlow(
        frozenset(_ends(graph.nodes, uses, lambda node: node.all_input_nodes)),
        frozenset(_ends(reversed(graph.nodes), uses, lambda node: list(node.users))),
        frozenset(name for used in uses.values() for name, side in used.items() if side == "right"),
        frozenset(name for used in uses.values() for name, side in used.items() if side == "left"),
    )


class _Tracer(fx.Tracer):
    """A tracer that passes over assertions."""

    def __init__(self) -> None:
        super().__init__(param_shapes_constant=True)
        self.trace_asserts = True


def _copy_without_values(model: nn.Module) -> nn.Module:
    """Return a copy of a model in evaluation mode with tensors on the meta device."""
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, False) if is_parameter else empty
    return copy.deepcopy(model, memo).eval()


def _weights_of(
    node: fx.Node, root: nn.Module, names: dict[int, str]
) -> Iterator[tuple[str, str | None]]:
    """Yield the weights that an operation multiplies the data by, and their sides."""
    if node.op == "call_module":
        for p in root.get_submodule(str(node.target)).parameters():
            if id(p) in names:
                yield names[id(p)], None
    if node.op not in ("call_function", "call_method") or node.target not in _WEIGHTED:
        return
    for position, argument in enumerate(node.all_input_nodes):
        transposed = False
        while argument.op in ("call_function", "call_method") and argument.target in _TRANSPOSED:
            argument = argument.all_input_nodes[0]
            transposed = not transposed
        if argument.op != "get_attr":
            continue
        name = names.get(id(_attribute(root, str(argument.target))))
        if name is None:
            continue
        if node.target is F.linear:
            yield name, "right" if transposed else "left"
        elif node.target in _RIGHT and position == 1:
            yield name, "left" if transposed else "right"
        elif node.target in _RIGHT:  # W @ x
            yield name, "right" if transposed else "left"
        else:
            yield name, None


def _attribute(root: nn.Module, path: str) -> object:
    found: Any = root
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _ends(nodes: Any, uses: dict[fx.Node, dict[str, str | None]], sources: Any) -> set[str]:
    """Return the weights that the data meet with no other weights before them.

    Args:
        nodes: All operations, sources first.
        uses: Weights of each operation.
        sources: Function that returns the operations before an operation.
    """
    before: dict[fx.Node, set[str]] = {}
    candidates: set[str] = set()
    excluded: set[str] = set()
    for node in nodes:
        met: set[str] = set()
        for source in sources(node):
            met |= before[source]
            met |= set(uses[source])
        before[node] = met
        for name in uses[node]:
            (excluded if met - {name} else candidates).add(name)
    return candidates - excluded
