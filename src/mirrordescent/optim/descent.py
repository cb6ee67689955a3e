"""Mirror descent for networks, stored in the primal or in the dual."""

from __future__ import annotations

from typing import Any

from mirrordescent import methods
from mirrordescent.methods.base import Method
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.optim.base import MirrorOptimizer
from mirrordescent.optim.geometry import determines_its_dual
from mirrordescent.schedules import Schedule


class MD(MirrorOptimizer):
    """Mirror descent:  x⁺ = ∇ψ*(∇ψ(x) − t_k g),  t_k = lr·s(k).

    Nothing is stored beside the parameters. With an inexact map the errors of its inverse add up; :class:`SMD` avoids
    that. The arguments are those of :class:`MirrorOptimizer`.

    >>> import torch
    >>> from mirrordescent.mirrors import NegativeEntropy
    >>> x = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    >>> optimizer = MD([x], lr=0.5, mirror=NegativeEntropy())  # x⁺ = x·exp(−t g) stays positive
    >>> x.sum().backward()
    >>> optimizer.step()
    >>> x.detach()
    tensor([0.6065, 1.2131])
    """

    def _method(self, mirror: MirrorMap, t: Schedule) -> Method[Any]:
        return methods.MD(mirror, t)


class SMD(MirrorOptimizer):
    """Mirror descent stored in the dual:  y⁺ = y − t_k g,  x⁺ = ∇ψ*(y⁺),  t_k = lr·s(k).

    The form for noisy gradients (LSMD when the map is learned); with the Euclidean map it is ``torch.optim.SGD``.
    Where the map is exact, elementwise and without a bounded domain, y = ∇ψ(x) is computed from the parameters when it
    is needed, and nothing is stored. Otherwise, and if ``dual_dtype`` is given, y is stored.
    The arguments are those of :class:`MirrorOptimizer`.

    >>> import torch
    >>> from mirrordescent.mirrors import Diagonal
    >>> x = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = SMD([x], lr=0.1, mirror=Diagonal(torch.tensor([1.0, 10.0])))
    >>> x.sum().backward()
    >>> optimizer.step()
    >>> x.detach(), optimizer.state_dict()["state"]
    (tensor([-0.1000, -0.0100]), {})
    """

    def _method(self, mirror: MirrorMap, t: Schedule) -> Method[Any]:
        if self.dual_dtype is None and determines_its_dual(mirror):
            return methods.MD(mirror, t)
        return methods.SMD(mirror, t)
