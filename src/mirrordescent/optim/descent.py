"""Mirror descent for networks, stored in the primal or in the dual."""

from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from mirrordescent import methods
from mirrordescent.domains import PositiveOrthant, WholeSpace
from mirrordescent.methods.base import GradientMethod
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.optim.base import MirrorOptimizer, Params
from mirrordescent.optim.geometry import MirrorLike
from mirrordescent.optim.options import Options
from mirrordescent.schedules import Schedule


class MD(MirrorOptimizer):
    """Mirror descent:  x⁺ = ∇ψ*(∇ψ(x) − t_k g),  t_k = lr·s(k).

    Only the parameters are stored. With an inexact map the errors of its inverse add up;
    :class:`SMD` avoids that. The arguments are those of :class:`MirrorOptimizer`.

    >>> import torch
    >>> from mirrordescent.mirrors import NegativeEntropy
    >>> x = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    >>> optimizer = MD([x], lr=0.5, mirror=NegativeEntropy())  # x⁺ = x·exp(−t g) stays positive
    >>> x.sum().backward()
    >>> optimizer.step()
    >>> x.detach()
    tensor([0.6065, 1.2131])
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        mirror: MirrorLike = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, lr, mirror, method=methods.MD, **options)


class SMD(MirrorOptimizer):
    """Mirror descent stored in the dual:  y⁺ = y − t_k g,  x⁺ = ∇ψ*(y⁺),  t_k = lr·s(k).

    The form for noisy gradients (LSMD when the map is learned); with the Euclidean map it is
    ``torch.optim.SGD``. If the map is exact, elementwise and its domain is not bounded, y = ∇ψ(x)
    is computed from the parameters in every step, and nothing is stored. Otherwise, or if
    ``dual_dtype`` is given, y is stored. The arguments are those of :class:`MirrorOptimizer`.

    >>> import torch
    >>> from mirrordescent.mirrors import Diagonal
    >>> x = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = SMD([x], lr=0.1, mirror=Diagonal(torch.tensor([1.0, 10.0])))
    >>> x.sum().backward()
    >>> optimizer.step()
    >>> x.detach(), optimizer.state_dict()["state"]
    (tensor([-0.1000, -0.0100]), {})
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        mirror: MirrorLike = None,
        **options: Unpack[Options],
    ) -> None:
        method = partial(_md_or_smd, dual_dtype=options.get("dual_dtype"))
        super().__init__(params, lr, mirror, method=method, **options)


def _md_or_smd(
    mirror: MirrorMap, t: Schedule, dual_dtype: torch.dtype | None
) -> GradientMethod[Any]:
    """Return MD if the parameters determine the dual, else SMD, which stores it."""
    if dual_dtype is None and determines_dual(mirror):
        return methods.MD(mirror, t)
    return methods.SMD(mirror, t)


def determines_dual(mirror: MirrorMap) -> bool:
    """Return whether x = ∇ψ*(y) always determines y = ∇ψ(x), entry by entry.

    After a projection it does not. In a bounded interval it does not either, because x may be
    rounded to an end of the interval, and would stay there.
    """
    domain = mirror.primal_domain
    unbounded = isinstance(domain, WholeSpace)
    if isinstance(domain, PositiveOrthant) and not mirror.defined_on_boundary:
        unbounded = True
    return mirror.exact and mirror.elementwise and unbounded
