"""Convex sets, as domains of mirror maps and as constraints.

A mirror map is defined on the *interior* of its domain, but rounding may put iterates on the
boundary. So membership is tested in the interior or in the closed set. Projections are onto the
closed set.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from mirrordescent._internal.checks import require_constant
from mirrordescent.parts import Part
from mirrordescent.trees import (
    Tree,
    add_over_leaves,
    all_over_leaves,
    leaves,
    sum_per_sample,
    tree_map,
)


class DomainError(ValueError):
    """A point lies outside the set that must contain it."""


class Domain(Part, ABC):
    """A closed convex set with non-empty (relative) interior, for each sample and leaf.

    To add a set, write ``description``, ``_contains``, ``_project`` and ``_inner_point``.
    """

    description: str
    """The set as a formula or in words, for messages."""

    bounded: bool = False
    """Whether the set is bounded."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def contains(self, x: Tree, *, closed: bool = False) -> Tensor:
        """Tell for every sample whether x lies in the interior, or in the closed set: (batch,)."""

        def contains(leaf: Tensor) -> Tensor:
            return self._contains(leaf, closed).reshape(leaf.shape[0], -1).all(1)

        return all_over_leaves(contains, x)

    def project(self, x: Tree) -> Tree:
        """Return the Euclidean projection onto the closed set."""
        return tree_map(self._project, x)

    def inner_point(self, like: Tree) -> Tree:
        """Return a point well inside the set, with the shape of another tree."""
        return tree_map(self._inner_point, like)

    def least(self, g: Tree) -> Tensor:
        """Return the minimum of ⟨g, x⟩ over the closed set, or −∞ if there is none: (batch,)."""
        return add_over_leaves(self._least, g)

    def along_face(self, at: Tree, v: Tree) -> Tree:
        """Project v on the directions of the face of the closed set in which a point lies."""
        return tree_map(self._along_face, at, v)

    def require(self, x: Tree, what: str, of: str, *, closed: bool = False) -> None:
        """Raise a DomainError unless all leaves lie in the interior, or in the closed set.

        The batch sizes of the leaves may differ.

        Args:
            x: Points.
            what: Name of the points, for the message.
            of: Name of the map or problem, for the message.
            closed: Whether points on the boundary are allowed.
        """
        if torch.compiler.is_compiling():  # a graph has no branches
            return
        for leaf in leaves(x):
            inside = self._contains(leaf, closed)
            if bool(inside.all()):
                continue
            samples = len(inside) if inside.ndim else 1
            outside = (~inside).reshape(samples, -1).any(1).nonzero().flatten().tolist()
            raise DomainError(
                f"{what} is outside the domain of {of}, which is {self.description} "
                f"(samples {_shorten(outside)})"
            )

    @abstractmethod
    def _contains(self, x: Tensor, closed: bool) -> Tensor:
        """Tell for every entry, or group of entries, of one tensor whether it lies in the set."""

    @abstractmethod
    def _project(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _inner_point(self, like: Tensor) -> Tensor: ...

    def _least(self, g: Tensor) -> Tensor:
        """Return min ⟨g, x⟩ for one tensor; −∞, always a lower bound, unless a set overrides it."""
        return g.new_full((len(g),), -torch.inf)

    def _along_face(self, at: Tensor, v: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} needs a method _along_face to project on its faces")


class WholeSpace(Domain):
    """All of Rⁿ."""

    description = "all of Rⁿ"

    def contains(self, x: Tree, *, closed: bool = False) -> Tensor:
        leaf = next(leaves(x))
        return torch.ones(leaf.shape[0], dtype=torch.bool, device=leaf.device)

    def _contains(self, x: Tensor, closed: bool) -> Tensor:
        return torch.ones_like(x, dtype=torch.bool)

    def _project(self, x: Tensor) -> Tensor:
        return x

    def _inner_point(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def _along_face(self, at: Tensor, v: Tensor) -> Tensor:
        return v


class PositiveOrthant(Domain):
    """{x : x > 0}."""

    description = "x > 0 in every entry"

    def _contains(self, x: Tensor, closed: bool) -> Tensor:
        return x >= 0 if closed else x > 0

    def _project(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)

    def _inner_point(self, like: Tensor) -> Tensor:
        return torch.ones_like(like)

    def _least(self, g: Tensor) -> Tensor:
        return torch.where((g >= 0).flatten(1).all(1), 0.0, -torch.inf).to(g.dtype)

    def _along_face(self, at: Tensor, v: Tensor) -> Tensor:
        return v * (at > 0)


NonNegative = PositiveOrthant
"""The same set as a term of a composite problem, where the closed set is meant."""


class NegativeOrthant(Domain):
    """{y : y < 0}, the domain of the conjugates of barriers."""

    description = "y < 0 in every entry"

    def _contains(self, x: Tensor, closed: bool) -> Tensor:
        return x <= 0 if closed else x < 0

    def _project(self, x: Tensor) -> Tensor:
        return x.clamp(max=0)

    def _inner_point(self, like: Tensor) -> Tensor:
        return -torch.ones_like(like)

    def _along_face(self, at: Tensor, v: Tensor) -> Tensor:
        return v * (at < 0)


class Box(Domain):
    """{x : lower < x < upper} in every entry.

    Args:
        lower: Lower bound of all entries.
        upper: Upper bound of all entries.
    """

    def __init__(self, lower: float, upper: float) -> None:
        require_constant(lower=lower, upper=upper)
        if not lower < upper:
            raise ValueError(f"Box needs lower < upper, got lower={lower}, upper={upper}")
        self.lower = float(lower)
        self.upper = float(upper)
        self.bounded = True
        self.description = f"{lower:g} < x < {upper:g} in every entry"

    def _contains(self, x: Tensor, closed: bool) -> Tensor:
        if closed:
            drift = _drift(x) * (self.upper - self.lower)
            return (x >= self.lower - drift) & (x <= self.upper + drift)
        return (x > self.lower) & (x < self.upper)

    def _project(self, x: Tensor) -> Tensor:
        return x.clamp(self.lower, self.upper)

    def _inner_point(self, like: Tensor) -> Tensor:
        return torch.full_like(like, (self.lower + self.upper) / 2)

    def _least(self, g: Tensor) -> Tensor:
        return sum_per_sample(torch.minimum(self.lower * g, self.upper * g))

    def _along_face(self, at: Tensor, v: Tensor) -> Tensor:
        return v * ((at > self.lower) & (at < self.upper))


class Simplex(Domain):
    """{x : x > 0, Σ x = 1}, along the last dimension."""

    description = "x > 0 with entries that sum to 1 along the last dimension"
    bounded = True

    def _contains(self, x: Tensor, closed: bool) -> Tensor:
        positive = (x >= 0 if closed else x > 0).all(-1)
        rounding = _drift(x) if closed else 16 * torch.finfo(x.dtype).eps * x.shape[-1] ** 0.5
        return positive & ((x.sum(-1) - 1).abs() <= rounding)

    def _project(self, x: Tensor) -> Tensor:
        """Return max(x − θ, 0) with the θ for which it sums to 1.

        θ is found by sorting (Held, Wolfe, Crowder 1974).
        """
        # A shift does not change the result, and keeps large entries from absorbing the 1.
        x = x - x.amax(-1, keepdim=True)
        descending = x.sort(dim=-1, descending=True).values
        rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        excess = descending.cumsum(-1) - 1
        # The count is 0 only for NaN, which passes through.
        active = (descending * rank > excess).sum(-1, keepdim=True).clamp(min=1)
        theta = excess.gather(-1, active - 1) / active
        return (x - theta).clamp(min=0)

    def _inner_point(self, like: Tensor) -> Tensor:
        return torch.full_like(like, 1 / like.shape[-1])

    def _least(self, g: Tensor) -> Tensor:
        return sum_per_sample(g.amin(-1))

    def _along_face(self, at: Tensor, v: Tensor) -> Tensor:
        """Keep entries that are 0, and let the changes of the others sum to 0."""
        free = (at > 0).to(v)
        mean = (free * v).sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1)
        return free * (v - mean)


def _drift(x: Tensor) -> float:
    """Return √eps, a bound on the distance from a closed set that rounding can cause in a run."""
    return float(torch.finfo(x.dtype).eps) ** 0.5


def _shorten(samples: list[int]) -> str:
    shown = ", ".join(map(str, samples[:8]))
    if len(samples) <= 8:
        return shown
    return f"{shown}, … {len(samples)} in all"
