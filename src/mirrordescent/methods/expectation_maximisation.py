"""Expectation maximisation for counts, of all rays or of ordered subsets of them: the classics of emission tomography.

They minimise  KL(y, Ax + b) + (ρ/2)‖Dx‖²  over x ≥ 0, and use of a problem the multiplier m(x) = Aᵀ(y/(Ax + b)) / Aᵀ1.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from torch import Generator, Tensor

from mirrordescent.methods.base import Method
from mirrordescent.methods.descent import MDState
from mirrordescent.oracles import Oracle, spread
from mirrordescent.problems.base import Problem
from mirrordescent.trees import Tree


class Counts(Protocol):
    """What a problem offers to expectation maximisation."""

    @property
    def terms(self) -> int:
        """The number of groups of rays."""

    @property
    def sensitivity(self) -> Tensor:
        """Aᵀ1."""

    def multiplier(self, x: Tensor, term: int | None = None) -> Tensor:
        """Aᵀ(y/(Ax + b)) / Aᵀ1, of all rays or of one group."""

    def roughness_grad(self, x: Tensor) -> Tensor:
        """ρDᵀDx."""

    @property
    def roughness_curvature(self) -> float:
        """A bound on ‖ρDᵀD‖."""


class MLEM(Method[MDState]):
    """Maximum likelihood by expectation maximisation:  x⁺ = x·m(x).

    With a roughness term, x⁺ > 0 minimises De Pierro's separable majorant, and f decreases as before: for s = Aᵀ1 and
    q ≥ ‖ρDᵀD‖ it is the root of  qx⁺² + (s + ρDᵀDx − qx)x⁺ = s·x·m(x).

    References: Shepp and Vardi, IEEE Trans. Med. Imaging 1 (1982); De Pierro, IEEE Trans. Med. Imaging 14 (1995).
    """

    def init(self, x0: Tree, problem: Problem | None = None) -> MDState:
        """Start at x0 > 0; where it is 0 it stays so."""
        return MDState(0, x0)

    def step(self, problem: Problem, state: MDState, oracle: Oracle, generator: Generator | None = None) -> MDState:
        """Multiply, and smooth."""
        counts, x = _counts(problem, self), cast(Tensor, state.x)
        explained = counts.sensitivity * x * counts.multiplier(x, self._term(counts, state.k))
        q = counts.roughness_curvature
        half = (counts.sensitivity + counts.roughness_grad(x) - q * x) / 2
        root = (half.square() + q * explained).sqrt()
        return MDState(state.k + 1, explained / (half + root))

    def _term(self, counts: Counts, k: int) -> int | None:
        """All rays."""
        return None


class OSEM(MLEM):
    """Ordered subsets: a step of :class:`MLEM` with the multiplier of one group of rays, in turn.

    As many steps as there are groups are a pass over the data, and early on worth as many steps of MLEM; later they
    cycle around the minimum.

    Reference: Hudson and Larkin, IEEE Trans. Med. Imaging 13 (1994).
    """

    def _term(self, counts: Counts, k: int) -> int:
        return spread(k, counts.terms)


def _counts(problem: Problem, method: Method[Any]) -> Counts:
    if not hasattr(problem, "multiplier"):
        raise TypeError(f"{type(method).__name__} needs counts along rays, which {type(problem).__name__} has none of")
    return cast(Counts, problem)
