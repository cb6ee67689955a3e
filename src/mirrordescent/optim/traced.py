"""Steps inside the graphs of ``torch.compile``: one operation, into which compilers do not look.

What a step decides by numbers (are gradients finite, was a parameter moved, which kernel) would
break a graph, or compile it anew for every shape. As one operation it does neither, and it is the
same step, bit by bit. Rates and momenta are read when it runs, so that schedulers need no
compilation either.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor


class Stepping(Protocol):
    """An optimiser that can step given tensors instead of its parameters and their gradients."""

    def step_on(self, numbers: Sequence[int], x: list[Tensor], g: list[Tensor]) -> None:
        """Step parameters, by their numbers among all, whose memory is x, along g."""


_known: WeakValueDictionary[str, Any] = WeakValueDictionary()
_numbers = count()


def name_in_graphs(optimizer: Stepping) -> str:
    """Return a name by which graphs find an optimiser, as long as there is one."""
    name = f"optimizer {next(_numbers)}"
    _known[name] = optimizer
    return name


def _step(x: Sequence[Tensor], g: Sequence[Tensor], numbers: Sequence[int], name: str) -> None:
    # Inside an operation nothing is differentiated, which maps that are gradients of networks have
    # to be.
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.AutogradOther):
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.no_grad():
        _known[name].step_on(numbers, list(x), list(g))


step_in_graph = torch.library.custom_op(
    "mirrordescent::step",
    _step,
    mutates_args=("x",),
    schema="(Tensor(a!)[] x, Tensor[] g, int[] numbers, str name) -> ()",
)
step_in_graph.register_fake(lambda x, g, numbers, name: None)
