"""Steps inside the graphs of ``torch.compile``, as one operation that compilers do not look into.

A step makes decisions by values: whether gradients are finite, whether a parameter was changed,
which kernel is used. Traced into a graph, these would break it, or compile it again for every
shape. As one operation they do neither, and the step is the same bit by bit. Learning rates and
momenta are read when the operation runs, so schedulers cause no compilation either.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor


class SteppedOptimizer(Protocol):
    """An optimiser that can step given tensors instead of its parameters and their gradients."""

    def step_on(self, indices: Sequence[int], x: list[Tensor], g: list[Tensor]) -> None:
        """Step the parameters with these indices, whose memory is x, along g."""


_optimizers: WeakValueDictionary[str, Any] = WeakValueDictionary()
_counter = count()


def register_optimizer(optimizer: SteppedOptimizer) -> str:
    """Return a name by which compiled graphs can refer to an optimiser while it exists."""
    name = f"optimizer {next(_counter)}"
    _optimizers[name] = optimizer
    return name


def _step(x: Sequence[Tensor], g: Sequence[Tensor], numbers: Sequence[int], name: str) -> None:
    # Autograd is disabled inside an operation. Maps that are gradients of networks need it.
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.AutogradOther):
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.no_grad():
        _optimizers[name].step_on(numbers, list(x), list(g))


step_in_graph = torch.library.custom_op(
    "mirrordescent::step",
    _step,
    mutates_args=("x",),
    schema="(Tensor(a!)[] x, Tensor[] g, int[] numbers, str name) -> ()",
)
step_in_graph.register_fake(lambda x, g, numbers, name: None)
