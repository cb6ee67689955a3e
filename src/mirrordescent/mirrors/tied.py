"""Maps whose entries share learned parameters, and multipliers of the gradient."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.trees import fits, sum_per_sample


class Tied(MirrorMap):
    """ψ(x) = Σᵢ φ_g(i)(xᵢ): the entries i of one group g(i) ∈ {0, …, count−1} share a learned φ.

    Args:
        groups: Groups g, integers 0 … count−1 that broadcast to *one* sample. Shape () ties all
            entries, shape (1, inputs) ties the rows of a weight matrix (outputs, inputs), and a
            full shape can tie any entries.
    """

    elementwise = True
    per_entry = ("groups",)

    groups: Tensor

    def __init__(self, groups: Tensor) -> None:
        super().__init__()
        groups = torch.as_tensor(groups)
        integers = not (groups.is_floating_point() or groups.is_complex())
        if not integers or groups.dtype == torch.bool or groups.numel() == 0:
            raise ValueError(
                "groups must be integers, at least one, "
                f"got {groups.dtype} of shape {tuple(groups.shape)}"
            )
        self.count = int(groups.max()) + 1
        in_range = int(groups.min()) >= 0 and self.count <= groups.numel()
        if not in_range or not bool(groups.flatten().bincount().all()):
            raise ValueError(f"groups must be numbered 0 … {self.count - 1} without gaps")
        self.register_buffer("groups", groups.long())

    def regrouped(self, groups: Tensor) -> Self:
        """Return the map for other groups of tied entries.

        If the number of groups is the same, each keeps its φ; otherwise all get the mean of the
        learned parameters.
        """
        raise NotImplementedError

    def _for_groups_of(self, other: Tied, learned: Tensor) -> Tensor:
        """Return parameters for the groups of another map, from those per group, (count, …)."""
        if other.count != self.count:
            learned = learned.mean(0).expand(other.count, *learned.shape[1:])
        return learned.detach().clone()

    def _check(self, x: Tensor) -> None:
        if not fits(self.groups.shape, x.shape[1:]):
            raise ValueError(
                f"the groups of this {type(self).__name__}, of shape {tuple(self.groups.shape)}, "
                f"do not broadcast to samples of shape {tuple(x.shape[1:])}"
            )

    def extra_repr(self) -> str:
        """Show the number of groups and the constructor arguments."""
        return f"count={self.count}, {super().extra_repr()}".removesuffix(", ")


class Multipliers(Tied):
    """ψ(x) = ½ Σ xᵢ²/w_g(i), w > 0:  ∇ψ(x) = x/w,  ∇ψ*(y) = w·y.

    Mirror descent with this map is x⁺ = x − t w·g: the gradient is multiplied by w, one number per
    group of entries. The learned parameters are log w, so that w stays positive.

    Args:
        groups: Groups of tied entries; see :class:`~mirrordescent.mirrors.tied.Tied`.
        initial: Initial w.

    >>> import torch
    >>> mirror = Multipliers(torch.tensor([0, 0, 1]), initial=0.5)
    >>> mirror.step(torch.ones(1, 3), torch.ones(1, 3)).detach()
    tensor([[0.5000, 0.5000, 0.5000]])
    """

    proven = linear = True

    def __init__(self, groups: Tensor, initial: float = 1.0) -> None:
        super().__init__(groups)
        if not 0 < initial < math.inf:
            raise ValueError(f"Multipliers needs a finite initial > 0, got {initial}")
        self.initial = float(initial)
        self.log_multiplier = nn.Parameter(
            torch.full((self.count,), math.log(initial), device=self.groups.device)
        )

    @property
    def multipliers(self) -> Tensor:
        """w: (count,)."""
        return self.log_multiplier.exp()

    @property
    def strong_convexity(self) -> StrongConvexity:
        """α = 1/max w in ℓ₂."""
        return StrongConvexity(float((-self.log_multiplier.detach().max()).exp()), 2.0)

    @property
    def smoothness(self) -> float:
        """1/min w."""
        return float((-self.log_multiplier.detach().min()).exp())

    def diagonal(self) -> Tensor:
        """Return 1/w of every entry."""
        return self.multipliers.detach().reciprocal()[self.groups]

    def regrouped(self, groups: Tensor) -> Self:
        """Return the map for other groups; if their number changes, all get the geometric mean."""
        other = type(self)(groups)
        other.log_multiplier = nn.Parameter(self._for_groups_of(other, self.log_multiplier))
        return other

    def _per_entry(self, x: Tensor) -> Tensor:
        self._check(x)
        return self.multipliers[self.groups]

    def _potential(self, x: Tensor) -> Tensor:
        return 0.5 * sum_per_sample(x.square() / self._per_entry(x))

    def _to_dual(self, x: Tensor) -> Tensor:
        return x / self._per_entry(x)

    def _to_primal(self, y: Tensor) -> Tensor:
        return self._per_entry(y) * y
