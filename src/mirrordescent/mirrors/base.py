"""The interface of every mirror map."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mirrordescent.domains import Domain, WholeSpace
from mirrordescent.parts import Part, claim_holds
from mirrordescent.trees import (
    SameTree,
    Tree,
    descend,
    dot,
    per_sample,
    spread,
    sum_per_sample,
    tree_map,
)


class StrongConvexity(NamedTuple):
    """A constant α with ψ(x') ≥ ψ(x) + ⟨∇ψ(x), x'−x⟩ + (α/2)‖x'−x‖_p², and the p of its norm.

    If a sample consists of several blocks with a potential each, such as simplices or the leaves
    of a dict, the squared norm is the sum over the blocks.
    """

    alpha: float
    p: float


class MirrorMap(Part, nn.Module):
    """The gradient ∇ψ of a convex potential ψ, and its inverse ∇ψ*.

    A map takes primal points to dual points, y = ∇ψ(x), and back, x = ∇ψ*(y). Mirror descent takes
    its gradient steps on dual points: x⁺ = ∇ψ*(∇ψ(x) − t∇f(x)).

    The public methods take a tensor ``(batch, …)``, or a dict of such tensors, over which ψ is a
    sum.

    **Required:** a subclass writes ``_potential``, ``_to_dual`` and ``_to_primal``, for one tensor.

    **Optional:** it states the facts that differ from the defaults:

    - ``primal_domain``, ``dual_domain`` and ``defined_on_boundary``: where ψ and ψ* are defined;
    - ``strong_convexity``, ``smoothness`` and ``continuous``: constants, for step sizes and
      theorems;
    - ``exact``, ``proven`` and ``certified``: what is guaranteed;
    - ``elementwise``, ``symmetric``, ``linear``, ``per_entry`` and ``diagonal()``: structure, which
      makes faster steps possible.

    **Derived** from these are steps, divergences, conjugates and directions. If there is a faster
    or more accurate formula, override ``_step``, ``_divergence`` or ``_direction``.
    """

    kind = "map"

    def __init__(self) -> None:
        super().__init__()

    # Required: the mathematics, for one tensor (batch, …).

    def _potential(self, x: Tensor) -> Tensor:
        """ψ(x) per sample: (batch,)."""
        raise NotImplementedError

    def _to_dual(self, x: Tensor) -> Tensor:
        """∇ψ(x)."""
        raise NotImplementedError

    def _to_primal(self, y: Tensor) -> Tensor:
        """∇ψ*(y)."""
        raise NotImplementedError

    # Facts: domains.

    primal_domain: Domain = WholeSpace()
    """The domain of ψ."""

    dual_domain: Domain = WholeSpace()
    """The domain of ψ*."""

    defined_on_boundary: bool = False
    """Whether points may lie on the boundary of the primal domain."""

    # Facts: constants.

    @property
    def strong_convexity(self) -> StrongConvexity | None:
        """Strong convexity of ψ; α = 0 if ψ is not strongly convex, None if unknown."""
        return None

    @property
    def smoothness(self) -> float | None:
        """A Lipschitz constant L_ψ of ∇ψ in ℓ₂; infinite if there is none, None if unknown."""
        return None

    @property
    def continuous(self) -> bool | None:
        """Whether ∇ψ is continuous, so that ψ is C¹; None if unknown."""
        return True if self.proven else None

    # Facts: guarantees.

    exact: bool = True
    """Whether ``to_primal`` is the exact inverse of ``to_dual``, not a learned surrogate."""

    proven: bool = False
    """Whether there is a proof that ∇ψ is monotone and the gradient of ψ."""

    certified: bool = False
    """Whether ``strong_convexity`` holds for all values of the learned parameters."""

    # Facts: structure.

    elementwise: bool = False
    """Whether the map acts on every entry separately, so that it applies to shards and in place."""

    symmetric: bool = False
    """Whether ψ is invariant under permutations and sign changes of the entries of a sample.

    Maps of singular values require this.
    """

    linear: bool = False
    """Whether ∇ψ is linear and ψ(0) = 0.

    Then ∇ψ*(∇ψ(x) − t·v) = x − t·∇ψ*(v) and B(x, x0) = ψ(x − x0). A subclass that overrides one of
    the mappings does not inherit this fact.
    """

    per_entry: tuple[str, ...] = ()
    """Names of the tensors that broadcast to a sample, and must be sharded with it."""

    def diagonal(self) -> Tensor | float | None:
        """Return d if ∇ψ(x) = d·x on all of Rⁿ; it broadcasts to one sample. None otherwise."""
        return None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not claim_holds(cls, "linear", "_potential", "_to_dual", "_to_primal", "_step"):
            cls.linear = False

    # Derived operations, for tensors and dicts.

    def potential(self, x: Tree) -> Tensor:
        """ψ(x) per sample: (batch,)."""
        if isinstance(x, Tensor):
            return self._potential(x)
        return _total(self._each("potential", (x,)))

    def to_dual(self, x: SameTree) -> SameTree:
        """∇ψ(x)."""
        if isinstance(x, Tensor):
            return self._to_dual(x)  # type: ignore[return-value]
        return self._each("to_dual", (x,))  # type: ignore[return-value]

    def to_primal(self, y: SameTree) -> SameTree:
        """∇ψ*(y) = (∇ψ)⁻¹(y), or a learned surrogate of it."""
        if isinstance(y, Tensor):
            return self._to_primal(y)  # type: ignore[return-value]
        return self._each("to_primal", (y,))  # type: ignore[return-value]

    def conjugate(self, y: Tree) -> Tensor:
        """ψ*(y) = ⟨y, ∇ψ*(y)⟩ − ψ(∇ψ*(y)) per sample, for an exact map: (batch,)."""
        x = self.to_primal(y)
        return dot(y, x) - self.potential(x)

    def divergence(self, x: Tree, x0: Tree) -> Tensor:
        """Bregman divergence B(x, x0) = ψ(x) − ψ(x0) − ⟨∇ψ(x0), x − x0⟩ per sample: (batch,)."""
        if isinstance(x, Tensor):
            return self._divergence(x, x0)  # type: ignore[arg-type]
        return _total(self._each("divergence", (x, x0)))

    def step(self, x: Tree, v: Tree, t: float | Tensor = 1.0) -> Tree:
        """Take a mirror step: ∇ψ*(∇ψ(x) − t·v) = argmin_x' t⟨v, x'⟩ + B(x', x).

        Args:
            x: Primal points.
            v: Dual vectors, such as gradients.
            t: Step size, a number or a tensor (batch,).
        """
        if isinstance(x, Tensor):
            return self._step(x, v, spread(t, x) if isinstance(t, Tensor) else t)  # type: ignore[arg-type]
        return self._each("step", (x, v), t)

    def steps(self, v: Tree, *starts: tuple[Tree, float | Tensor]) -> list[Tree]:
        """Take mirror steps along the same v from several points.

        Args:
            v: Dual vectors.
            starts: Pairs of primal points and step sizes.
        """
        if not self.linear:
            return [self.step(x, v, t) for x, t in starts]
        direction = self.to_primal(v)  # shared by all steps
        return [tree_map(lambda x, d, t=t: descend(x, d, t), x, direction) for x, t in starts]

    def dual_start(self, x0: Tree) -> Tree:
        """Return the first dual point of dual-stored methods: ∇ψ(x0), unless a map learns one."""
        return self.to_dual(x0)

    def convexity_in_l2(self) -> float:
        """Return α if the map is strongly convex in ℓ₂; raise a TypeError otherwise."""
        convexity = self.strong_convexity
        if convexity is None or convexity.p != 2:
            raise TypeError(
                f"{type(self).__name__} must state a strong_convexity in ℓ₂ (p = 2), "
                f"but states {convexity}"
            )
        return convexity.alpha

    # Directions: normalised steps, for training networks.

    def direction(self, y: Tree) -> Tree:
        """Return s(y) ∇ψ*(y/c(y)), with c(y) the size of y; 0 for y = 0.

        The factor s makes the mean square of the entries 1. For a fixed c the direction is parallel
        to the gradient of the convex function ψ*(·/c). As a function of y it is not a gradient: the
        factor s belongs to the step size. Leaves are treated separately.
        """
        return self._direction(y) if isinstance(y, Tensor) else self._each("direction", (y,))

    @property
    def direction_size(self) -> float:
        """The root mean square ℓ of the entries of a direction; 1 unless the map is scaled."""
        return 1.0

    def direction_sizes(self, y: Tree) -> Any:
        """Return ℓ of every leaf of y: a number, or a dict of numbers."""
        if isinstance(y, Tensor):
            return self.direction_size
        return dict.fromkeys(y, self.direction_size)

    def sum_of_parts(self, values: Tensor) -> Tensor:
        """Return the sum of values over the processes that hold parts of a tensor."""
        return values

    # Formulas for one tensor that a subclass may improve.

    def _step(self, x: Tensor, v: Tensor, t: float | Tensor) -> Tensor:
        if self.linear:
            return descend(x, self._to_primal(v), t)
        return self._to_primal(descend(self._to_dual(x), v, t))

    def _divergence(self, x: Tensor, x0: Tensor) -> Tensor:
        if self.linear:
            return self._potential(x - x0)
        linear = sum_per_sample(self._to_dual(x0) * (x - x0))
        return self._potential(x) - self._potential(x0) - linear

    def _direction(self, y: Tensor) -> Tensor:
        size = self._size(y)
        return unit(self._to_primal(y / torch.where(size > 0, size, 1.0)))

    def _size(self, y: Tensor) -> Tensor:
        """c(y) of :meth:`direction`, which broadcasts to y; the root mean square by default."""
        return _root_mean_square(y)

    def _each(self, what: str, trees: tuple[Any, ...], *rest: Any) -> dict[str, Tensor]:
        """Apply an operation to the corresponding leaves of dicts.

        Args:
            what: Name of the operation, such as ``"to_dual"``.
            trees: Dicts of tensors.
            rest: Further arguments, the same for all leaves.
        """
        operation = getattr(self, f"_{what}")
        return {name: operation(*(tree[name] for tree in trees), *rest) for name in trees[0]}


def unit(d: Tensor) -> Tensor:
    """Scale every sample such that the mean square of its entries is 1; 0 stays 0."""
    size = _root_mean_square(d)
    return d / torch.where(size > 0, size, 1.0)


def _root_mean_square(d: Tensor) -> Tensor:
    """Return the root mean square of the entries of every sample, broadcastable to d."""
    return per_sample(sum_per_sample(d.square()).div(max(d[0].numel(), 1)).sqrt(), d)


def _total(per_leaf: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(per_leaf.values())).sum(0)
