"""The kernel for primal-dual methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from mirrordescent.methods.fused.kernel import Kernel, call, planes_of
from mirrordescent.methods.primal_dual import PDHG, CondatVu, PDHGState
from mirrordescent.trees import tree_map

if TYPE_CHECKING:
    from mirrordescent.methods.base import Method
    from mirrordescent.methods.watching import Means
    from mirrordescent.problems.tv import TVInpainting


class PrimalDualKernel(Kernel):
    """PDHG, and the method of Condat and Vũ. With w = Dᵀu and L = 2s both are

    .. code-block:: none

        x⁺ = x − τw + c·Z(y − x + b·w),   u⁺ = clip(u + σD(2x⁺ − x), sλ)
        PDHG:       c = Lτ/(1 + Lτ),  b = τ,  and x⁺ is clipped to the box of the problem
        Condat–Vũ:  c = Lτ,           b = 0
    """

    kind = "PDHG or CondatVu"

    def __init__(self, method: PDHG) -> None:
        self.method, self.proximal = method, type(method) is PDHG

    @classmethod
    def of(cls, method: Method[Any]) -> PrimalDualKernel | None:
        """Return the kernel for one of the two methods."""
        return cls(method) if isinstance(method, PDHG) and type(method) in (PDHG, CondatVu) else None

    def step(self, problem: TVInpainting, state: PDHGState, means: Means | None) -> PDHGState:
        """Take a step."""
        x = cast(Tensor, state.x).contiguous()
        u = cast("dict[str, Tensor]", tree_map(torch.zeros_like, problem.K(x)) if state.u is None else state.u)
        v, h = u["vertical"].contiguous(), u["horizontal"].contiguous()
        x_new, v_new, h_new = torch.empty_like(x), torch.empty_like(v), torch.empty_like(h)
        tau, sigma = self.method.step_sizes(problem)
        pull = 2 * problem.scale * tau
        numbers = (tau, pull / (1 + pull), tau) if self.proximal else (tau, pull, 0.0)
        box = (problem.low.contiguous(), problem.high.contiguous()) if self.proximal else (None, None)
        call(
            "primal_dual", x, v, h, problem.y.contiguous(), *planes_of(problem.mask, x), *box, x_new, v_new, h_new,
            *numbers, sigma, problem.kink,
        )  # fmt: skip
        return PDHGState(state.k + 1, x_new, {"vertical": v_new, "horizontal": h_new})
