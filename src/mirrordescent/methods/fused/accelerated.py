"""The kernel for accelerated mirror descent with a stencil."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from mirrordescent.methods.accelerated import AMD, AMDState
from mirrordescent.methods.equipped import Equipped
from mirrordescent.methods.fused.kernel import Kernel, call, planes_of
from mirrordescent.mirrors.stencil import Stencil
from mirrordescent.oracles import Rounded

if TYPE_CHECKING:
    from mirrordescent.methods.base import Method
    from mirrordescent.methods.watching import Means
    from mirrordescent.problems.tv import TVInpainting


class AcceleratedKernel(Kernel):
    """AMD with a stencil for its map, and rounded gradients:

    .. code-block:: none

        h  =  S ∇f_a(x) S                                    S: the stencil, down the columns and along the rows
        z⁺ =  z − w_k t_k h,    x⁺ = λ_k+1 z⁺ + (1 − λ_k+1) (x − γ_k t_k h)

    It tells Dᵀu = ∇f_a(x) − 2sZ(x − y), as a gradient at y, where the fidelity has none: for a bound that is the same,
    and y is its own mean.
    """

    kind = "AMD with a Stencil and Rounded gradients"

    def __init__(self, method: AMD, oracle: Rounded, stencil: Stencil) -> None:
        self.method, self.oracle, self.stencil = method, oracle, stencil

    @classmethod
    def of(cls, method: Method[Any]) -> AcceleratedKernel | None:
        """Return the kernel for a method such as the entries of the zoo that end in ``-spectral``."""
        if not isinstance(method, Equipped):
            return None
        inner, oracle = method.method, method.oracle
        if (
            type(oracle) is Rounded
            and type(inner) is AMD
            and type(inner.mirror) is Stencil
            and inner.regulariser is inner.mirror
            and (inner.storage, inner.returned) == ("primal", "x")
        ):
            return cls(inner, oracle, inner.mirror)
        return None

    def step(self, problem: TVInpainting, state: AMDState, means: Means | None) -> AMDState:
        """Take a step."""
        x, z = (cast(Tensor, part).contiguous() for part in (state.x, state.z))
        x_new, z_new = torch.empty_like(x), torch.empty_like(z)
        mean = None if means is None or means.gradient is None else cast(Tensor, means.gradient).contiguous()
        mean_new = None if means is None else torch.empty_like(x)
        method, k = self.method, state.k + 1
        t = float(method.t(k))
        call(
            "amd_stencil", x, z, problem.y.contiguous(), *planes_of(problem.mask, x), x_new, z_new, mean, mean_new,
            1.0 if means is None else means.share, 2 * problem.scale, float(self.oracle.curvature(k)), problem.kink,
            float(self.stencil.damping) / 4, t * float(method.dual_weight(k)), t * float(method.gamma(k)),
            float(method.mixing(k + 1)),
        )  # fmt: skip
        if means is not None and mean_new is not None:
            means.keep(problem.y, mean_new)
        return AMDState(k, z_new, x_new, x_new)
