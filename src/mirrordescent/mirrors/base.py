"""The interface of every mirror map."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mirrordescent.domains import Domain, WholeSpace
from mirrordescent.parts import Part, claim_holds
from mirrordescent.trees import Tree, descend, dot, per_sample, spread, sum_per_sample, tree_map


class StrongConvexity(NamedTuple):
    """ψ(x') ≥ ψ(x) + ⟨∇ψ(x), x'−x⟩ + (α/2)‖x'−x‖_p²: the constant α with the p of its norm.

    Where a sample is made of several parts with a potential each (simplices, or the leaves of a
    dict), the square of the norm is the sum over the parts.
    """

    alpha: float
    p: float


class MirrorMap(Part, nn.Module):
    """∇ψ of a convex potential ψ, with its inverse ∇ψ*.

    A map sends primal points to dual ones, y = ∇ψ(x), and back, x = ∇ψ*(y). Mirror descent takes
    its gradient steps on the dual side: x⁺ = ∇ψ*(∇ψ(x) − t∇f(x)).

    The public methods take a tensor ``(batch, …)`` or a dict of such tensors, over which ψ is the
    sum. To add a map, subclass and write the underscored twins for one tensor: ``_potential``,
    ``_to_dual`` and ``_to_primal``; then state what is known about it: its domains, constants and
    the rest below.
    """

    kind = "map"

    exact: bool = True
    """Whether ``to_primal`` is the true inverse of ``to_dual``."""

    elementwise: bool = False
    """Whether the map acts on every entry by itself, so that it may be applied to shards and in
    place.
    """

    symmetric: bool = False
    """Whether ψ stays the same when entries of a sample change places or signs, as on singular
    values it must.
    """

    per_entry: tuple[str, ...] = ()
    """The names of its tensors that broadcast to a sample: where a sample is cut into shards, they
    are cut with it.
    """

    linear: bool = False
    """Whether ∇ψ is linear and ψ(0) = 0, so that ∇ψ*(∇ψ(x) − t·v) = x − t·∇ψ*(v) and B(x, x0) = ψ(x
    − x0).
    """

    proven: bool = False
    """Whether it is proven, and not only suggested by samples, that ∇ψ is monotone and the gradient
    of ψ.
    """

    certified: bool = False
    """Whether the α it states is a certificate, which holds whatever is learned, and not a formula.
    """

    primal_domain: Domain = WholeSpace()
    dual_domain: Domain = WholeSpace()

    defined_on_boundary: bool = False
    """Whether points may lie on the boundary of the primal domain, or only in its interior."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not claim_holds(cls, "linear", "_potential", "_to_dual", "_to_primal", "_step"):
            cls.linear = False  # it is another map than the one that said so

    @property
    def strong_convexity(self) -> StrongConvexity | None:
        """Strong convexity on the whole domain, α = 0 if there is none; None: not known."""
        return None

    @property
    def continuous(self) -> bool | None:
        """Whether ∇ψ is continuous, so that ψ is C¹; None: not known."""
        return True if self.proven else None

    @property
    def smoothness(self) -> float | None:
        """L_ψ, a Lipschitz constant of ∇ψ in ℓ₂ on the whole domain, infinite if there is none;
        None: not known.
        """
        return None

    def diagonal(self) -> Tensor | float | None:
        """Return the d of a map with ∇ψ(x) = d·x on all of Rⁿ, which broadcasts to one sample; None
        for other maps.
        """
        return None

    def potential(self, x: Tree) -> Tensor:
        """ψ(x), one number per sample: (batch,)."""
        return (
            self._potential(x) if isinstance(x, Tensor) else _total(self._each("potential", (x,)))
        )

    def conjugate(self, y: Tree) -> Tensor:
        """ψ*(y) = ⟨y, ∇ψ*(y)⟩ − ψ(∇ψ*(y)) of an exact map, one number per sample: (batch,)."""
        x = self.to_primal(y)
        return dot(y, x) - self.potential(x)

    def convexity_in_l2(self) -> float:
        """α of a map that is strongly convex in ℓ₂, or an error."""
        convexity = self.strong_convexity
        if convexity is None or convexity.p != 2:
            raise TypeError(f"{type(self).__name__} does not know how convex it is in ℓ₂")
        return convexity.alpha

    def to_dual(self, x: Tree) -> Tree:
        """∇ψ(x)."""
        return self._to_dual(x) if isinstance(x, Tensor) else self._each("to_dual", (x,))

    def to_primal(self, y: Tree) -> Tree:
        """∇ψ*(y) = (∇ψ)⁻¹(y), or a learned surrogate of it."""
        return self._to_primal(y) if isinstance(y, Tensor) else self._each("to_primal", (y,))

    def step(self, x: Tree, v: Tree, t: float | Tensor = 1.0) -> Tree:
        """∇ψ*(∇ψ(x) − t·v) = argmin_x' t⟨v, x'⟩ + B(x', x): one mirror step along a dual
        vector v.
        """
        if isinstance(x, Tensor):
            return self._step(x, v, spread(t, x) if isinstance(t, Tensor) else t)  # type: ignore[arg-type]
        return self._each("step", (x, v), t)

    def steps(self, v: Tree, *starts: tuple[Tree, float | Tensor]) -> list[Tree]:
        """Take a mirror step along the same v from each of several points x, each with its own
        length t.
        """
        if not self.linear:
            return [self.step(x, v, t) for x, t in starts]
        direction = self.to_primal(v)  # one application serves all
        return [tree_map(lambda x, d, t=t: descend(x, d, t), x, direction) for x, t in starts]

    def direction(self, y: Tree) -> Tree:
        """s(y) ∇ψ*(y/c(y)): where c is the size of y, and s makes the mean square of the entries 1;
        0 for y = 0.

        For a fixed c this is along the gradient of the convex function ψ*(·/c). As a function of y
        it is no gradient: the factor s belongs to the step size, not to the map. Each leaf is by
        itself.
        """
        return self._direction(y) if isinstance(y, Tensor) else self._each("direction", (y,))

    @property
    def direction_size(self) -> float:
        """ℓ, the root mean square of the entries of a direction: 1 unless the map is scaled."""
        return 1.0

    def direction_sizes(self, y: Tree) -> Any:
        """Return ℓ of every leaf of y: a number, or a dict of numbers."""
        return (
            self.direction_size if isinstance(y, Tensor) else dict.fromkeys(y, self.direction_size)
        )

    def dual_start(self, x0: Tree) -> Tree:
        """y⁰ of dual-stored methods: ∇ψ(x0), unless a map has learned a better one."""
        return self.to_dual(x0)

    def divergence(self, x: Tree, x0: Tree) -> Tensor:
        """Bregman divergence B(x, x0) = ψ(x) − ψ(x0) − ⟨∇ψ(x0), x − x0⟩ per sample: (batch,)."""
        if isinstance(x, Tensor):
            return self._divergence(x, x0)  # type: ignore[arg-type]
        return _total(self._each("divergence", (x, x0)))

    def _each(self, what: str, trees: tuple[Any, ...], *rest: Any) -> dict[str, Tensor]:
        """Call the underscored twin of a method on the corresponding leaves of dicts, with what
        else it takes.
        """
        twin = getattr(self, f"_{what}")
        return {name: twin(*(tree[name] for tree in trees), *rest) for name in trees[0]}

    def _size(self, y: Tensor) -> Tensor:
        """c(y) of :meth:`direction`, which broadcasts to y: by default the root mean square of the
        entries.
        """
        return per_sample(sum_per_sample(y.square()).div(max(y[0].numel(), 1)).sqrt(), y)

    def _direction(self, y: Tensor) -> Tensor:
        size = self._size(y)
        return unit(self._to_primal(y / torch.where(size > 0, size, 1.0)))

    def _potential(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _to_dual(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _to_primal(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def _step(self, x: Tensor, v: Tensor, t: float | Tensor) -> Tensor:
        if self.linear:
            return descend(x, self._to_primal(v), t)
        return self._to_primal(descend(self._to_dual(x), v, t))

    def _divergence(self, x: Tensor, x0: Tensor) -> Tensor:
        if self.linear:
            return self._potential(x - x0)
        linear = sum_per_sample(self._to_dual(x0) * (x - x0))
        return self._potential(x) - self._potential(x0) - linear


def unit(d: Tensor) -> Tensor:
    """Scale every sample so that the mean square of its entries is 1; leave 0 as it is."""
    size = per_sample(sum_per_sample(d.square()).div(max(d[0].numel(), 1)).sqrt(), d)
    return d / torch.where(size > 0, size, 1.0)


def _total(per_leaf: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(per_leaf.values())).sum(0)
