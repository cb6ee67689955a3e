"""Classical and stochastic methods for emission tomography: min KL(y, Ax + b) + (ρ/2)‖Dx‖², x ≥ 0.

Expectation maximisation uses the multiplier m(x) = Aᵀ(y/(Ax + b)) / Aᵀ1, of all rays or of ordered
subsets of them.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor

from mirrordescent._internal.checks import require_positive
from mirrordescent.methods.base import Method
from mirrordescent.methods.descent import MDState
from mirrordescent.oracles import Oracle, require_generator, spread_out
from mirrordescent.problems import PoissonTomography, Problem
from mirrordescent.trees import Tree


class MLEM(Method[MDState]):
    """Maximum likelihood by expectation maximisation:  x⁺ = x·m(x).

    With a roughness term, x⁺ > 0 minimises De Pierro's separable majorant, and f decreases as
    before: for s = Aᵀ1 and q ≥ ‖ρDᵀD‖ it is the root of  qx⁺² + (s + ρDᵀDx − qx)x⁺ = s·x·m(x).

    References: Shepp and Vardi, IEEE Trans. Med. Imaging 1 (1982); De Pierro, IEEE Trans. Med.
        Imaging 14 (1995).
    """

    def init(self, x0: Tree, problem: Problem | None = None) -> MDState:
        """Start at x0 > 0; entries that are 0 stay 0."""
        return MDState(0, x0)

    def step(
        self, problem: Problem, state: MDState, oracle: Oracle, generator: Generator | None = None
    ) -> MDState:
        counts = _emission(problem, self)
        x = cast(Tensor, state.x)
        explained = counts.sensitivity * x * counts.multiplier(x, self._term(counts, state.k))
        q = counts.roughness_curvature
        half = (counts.sensitivity + counts.roughness_grad(x) - q * x) / 2
        root = (half.square() + q * explained).sqrt()
        return MDState(state.k + 1, explained / (half + root))

    def _term(self, counts: PoissonTomography, k: int) -> int | None:
        """All rays."""
        return None


class OSEM(MLEM):
    """Ordered subsets: a step of :class:`MLEM` with the multiplier of one group of rays, in turn.

    One step for each group makes a pass over the data. Early on, a pass is worth that many steps of
    MLEM; later the iterates cycle around the minimum.

    Reference: Hudson and Larkin, IEEE Trans. Med. Imaging 13 (1994).
    """

    def _term(self, counts: PoissonTomography, k: int) -> int:
        return spread_out(k, counts.terms)


class SPDHGState(NamedTuple):
    """Number of steps, image, dual variable, its back-projection Aᵀu, and its extrapolation."""

    k: int
    x: Tree
    u: Tensor
    back: Tensor
    ahead: Tensor


class SPDHG(Method[SPDHGState]):
    """Stochastic PDHG, with a random group i of n groups of rays in every step:

    .. code-block:: none

        x⁺   =  max(0, x − τ(ρDᵀDx + z̄))
        uᵢ⁺  =  prox_{σG*}(uᵢ + σAᵢx⁺),  the others as they were
        z⁺   =  z + δ,  z̄⁺ = z⁺ + nδ,     δ = Aᵢᵀ(uᵢ⁺ − uᵢ),  z = Aᵀu
        σ    =  1/(ratio·max‖Aᵢ‖),  1/τ = n·max‖Aᵢ‖/ratio + ‖ρDᵀD‖/2

    The roughness enters by its gradient, as in Condat and Vũ's method. One step for each group
    makes a pass.

    Reference: Chambolle, Ehrhardt, Richtárik, Schönlieb, SIAM J. Optim. 28 (2018).
    """

    def __init__(self, ratio: float = 1.0) -> None:
        super().__init__()
        require_positive(ratio=ratio)
        self.ratio = float(ratio)

    def init(self, x0: Tree, problem: Problem | None = None) -> SPDHGState:
        x = cast(Tensor, x0)
        zero = torch.zeros_like(x)
        return SPDHGState(
            0, x, torch.zeros_like(_emission(problem, self).forward_project(x)), zero, zero
        )

    def step(
        self,
        problem: Problem,
        state: SPDHGState,
        oracle: Oracle,
        generator: Generator | None = None,
    ) -> SPDHGState:
        """Take a primal step, and a dual one along the rays of a random group."""
        generator = require_generator(generator, self)
        groups = _emission(problem, self)
        x = cast(Tensor, state.x)
        n = groups.terms
        norm = max(map(groups.projection_norm, range(n)))
        sigma = 1 / (self.ratio * norm)
        tau = 1 / (n * norm / self.ratio + groups.roughness_curvature / 2)
        x = (x - tau * (groups.roughness_grad(x) + state.ahead)).clamp(min=0)
        i = int(torch.randint(n, (), generator=generator, device=generator.device))
        old = state.u[:, :, i::n]
        new = groups.prox_data_conjugate(old + sigma * groups.forward_project(x, i), sigma, i)
        delta = groups.back_project(new - old, i)
        u = state.u.clone()
        back = state.back + delta
        u[:, :, i::n] = new
        return SPDHGState(state.k + 1, x, u, back, back + n * delta)


def _emission(problem: Problem | None, method: Method[Any]) -> PoissonTomography:
    if problem is None:
        raise TypeError(
            f"{type(method).__name__} has to know the problem from the start: init(x0, problem)"
        )
    if not isinstance(problem, PoissonTomography):
        raise TypeError(
            f"{type(method).__name__} needs counts along rays, and "
            f"{type(problem).__name__} has none"
        )
    return problem
