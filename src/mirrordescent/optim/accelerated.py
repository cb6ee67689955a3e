"""Accelerated mirror descent for networks."""

from functools import partial
from typing import Any, Literal, TypeAlias, Unpack

from torch import Tensor

from mirrordescent import methods
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.optim.base import MirrorOptimizer, Params
from mirrordescent.optim.geometry import MirrorLike
from mirrordescent.optim.options import Options
from mirrordescent.schedules import Schedule, ScheduleLike

Correction: TypeAlias = Literal["euclidean", "mirror"]


class AMD(MirrorOptimizer):
    """Accelerated mirror descent with a capped count. For k = 0, 1, …, with the gradient g at x:

    .. code-block:: none

        z⁺  =  z − w_k t_k g                                     w_k = min(k, cap)/r,  t_k = lr·s(k)
        x⁺  =  λ_{k+1} ∇ψ*(z⁺) + (1 − λ_{k+1}) (x − γ t_k g)     λ_k = r/(r + min(k, cap))

    LAMD* when the map is learned and ``cap=None``. The parameters hold x; z, which starts at ∇ψ(x),
    is stored.

    *Why a cap.* With the Euclidean map and the corrected point x̃ = x − γ t g, m = z − x̃ satisfies

    .. code-block:: none

        m⁺  =  (1 − λ_k) m − (w_k − γ) t_k g,    x⁺  =  x − γ t_k g + λ_{k+1} m⁺

    Here 1 − λ_k = k/(r + k) is a momentum that tends to 1, and t_k w_k is a step that grows with k.
    With exact gradients of a convex f this converges, and ``cap=None`` is faster. With minibatches
    it accumulates noise, so that the loss of a network falls and then rises again. The cap bounds
    both the momentum and the step. From k = cap on, the method is stochastic gradient descent with
    the constant momentum β = 1 − λ,

    .. code-block:: none

        v⁺  =  β v + g,    x⁺  =  x − t (γ g + (β − (1 − β) γ) v⁺),    β = cap/(r + cap)

    and with γ = β it is ``torch.optim.SGD(lr=β·t, momentum=β, nesterov=True)``. The default has
    β = 0.9 and steps of total length t·cap/r = 9t; plain momentum of 0.9 has 10t. Use the lr of
    gradient descent with momentum.

    Args:
        params: See :class:`MirrorOptimizer`, which also explains the arguments not listed here.
        lr: See :class:`MirrorOptimizer`.
        mirror: See :class:`MirrorOptimizer`.
        r: The r of the formulas, at least 3.
        gamma: γ, a number or a schedule.
        cap: The k after which the momentum is constant; None for no cap.
        correction: Geometry of the step x − γ t g: ``"euclidean"`` as in the paper, or
            ``"mirror"`` for ∇ψ*(∇ψ(x) − γ t g).

    A learned AMD of the zoo has its own r, gamma, cap and correction. With lr = 1 the optimiser is
    that method.

    >>> import torch
    >>> from mirrordescent import optim
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = optim.AMD(model.parameters(), lr=0.05)
    >>> inputs = torch.eye(3)
    >>> for _ in range(200):
    ...     optimizer.zero_grad()
    ...     loss = (model(inputs) - 1).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    >>> bool(loss < 1e-4)
    True

    Reference: Krichene, Bayen, Bartlett, NeurIPS 2015.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        mirror: MirrorLike = None,
        *,
        r: float = 3.0,
        gamma: ScheduleLike = 1.0,
        cap: int | None = 27,
        correction: Correction = "euclidean",
        **options: Unpack[Options],
    ) -> None:
        if correction not in ("euclidean", "mirror"):
            raise ValueError(f"correction must be 'euclidean' or 'mirror', got {correction!r}")
        method = partial(_amd, correction=correction, r=r, gamma=gamma, cap=cap)
        super().__init__(params, lr, mirror, method=method, **options)


def _amd(mirror: MirrorMap, t: Schedule, correction: Correction, **settings: Any) -> methods.AMD:
    regulariser = mirror if correction == "mirror" else None
    return methods.AMD(mirror, t, regulariser=regulariser, **settings)


class ASMD(MirrorOptimizer):
    """Accelerated stochastic mirror descent. For k = 0, 1, …, with the gradient g at x:

    .. code-block:: none

        y⁺  =  y − t_k (A_{k+1} − A_k)/s_k · g
        x⁺  =  w_{k+1} ∇ψ*(y⁺) + (1 − w_{k+1}) x

        A_k = k(k+1)/2,  A_0 = ½,  s_k = (k+1)^(3/2),  w_k = (A_{k+1} − A_k)/A_{k+1},  t_k = lr·s(k)

    LASMD when the map is learned. The parameters hold x; y, which starts at ∇ψ(x), is stored. The
    dual step decays like 1/√k by itself, and x is an average, so the method suits noisy gradients
    and a constant lr. The arguments are those of :class:`MirrorOptimizer`.

    >>> import torch
    >>> from mirrordescent import optim
    >>> x = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = optim.ASMD([x], lr=0.5)
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     x.square().sum().backward()
    ...     optimizer.step()
    >>> bool(x.abs() < 1e-2)
    True

    Reference: Xu, Wang, Gu, AISTATS 2018, Algorithm 2.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        mirror: MirrorLike = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, lr, mirror, method=methods.ASMD, **options)
