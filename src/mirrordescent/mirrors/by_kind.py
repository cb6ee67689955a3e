"""One map for every kind of layer, so that a few numbers serve any network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, get_args

import torch
from torch import Tensor, nn

from mirrordescent._internal.checks import require_positive
from mirrordescent.domains import Box, Domain, PositiveOrthant, WholeSpace
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.mirrors.odd import SoftSign
from mirrordescent.mirrors.roles import LayerKind, Role, roles
from mirrordescent.mirrors.singular_values import SingularValues, SpectralBall, SpectralPower
from mirrordescent.parts import Config
from mirrordescent.trees import Tree

KINDS: tuple[LayerKind, ...] = get_args(LayerKind)
# at which the scale of a kind of layer holds as it is
TYPICAL_FAN_IN = 64
TYPICAL_DEPTH = 4


class ScaledMap(MirrorMap):
    """ψ*(y) = c φ*(y):  ∇ψ*(y) = c ∇φ*(y),  ∇ψ(x) = ∇φ(x/c),  ψ(x) = c φ(x/c): longer or shorter
    steps.

    >>> import torch
    >>> from mirrordescent.mirrors import Euclidean
    >>> ScaledMap(Euclidean(), 0.5).to_primal(torch.ones(1, 2))
    tensor([[0.5000, 0.5000]])
    """

    def __init__(self, mirror: MirrorMap, c: float) -> None:
        super().__init__()
        require_positive(c=c)
        self.mirror = mirror
        self.c = float(c)
        self.primal_domain = _dilated(mirror.primal_domain, self.c)
        self.dual_domain = mirror.dual_domain
        for claim in (
            "exact",
            "proven",
            "certified",
            "elementwise",
            "symmetric",
            "defined_on_boundary",
        ):
            setattr(self, claim, getattr(mirror, claim))

    @property
    def strong_convexity(self) -> StrongConvexity | None:
        """α/c, in the same norm."""
        stated = self.mirror.strong_convexity
        return None if stated is None else StrongConvexity(stated.alpha / self.c, stated.p)

    @property
    def smoothness(self) -> float | None:
        """L/c."""
        stated = self.mirror.smoothness
        return None if stated is None else stated / self.c

    @property
    def continuous(self) -> bool | None:
        return self.mirror.continuous

    def _potential(self, x: Tensor) -> Tensor:
        return self.c * self.mirror._potential(x / self.c)

    def _to_dual(self, x: Tensor) -> Tensor:
        return self.mirror._to_dual(x / self.c)

    def _to_primal(self, y: Tensor) -> Tensor:
        return self.c * self.mirror._to_primal(y)

    def _direction(self, y: Tensor) -> Tensor:
        return self.c * self.mirror._direction(y)

    @property
    def direction_size(self) -> float:
        return self.c * self.mirror.direction_size


def _nameless(*_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        "a map by kinds of layers takes the parameters of a model, a dict of tensors by name; got a tensor"
    )


class ByKind(MirrorMap):
    """ψ*(y) = Σ_leaf c_leaf φ*_kind(y_leaf) on the parameters of any network, tied by the kinds of
    its layers.

    .. code-block:: none

        c_leaf = s_kind · (fan_in/64)^−width_kind · (layers/4)^−depth

    Each kind of layer (:func:`~mirrordescent.mirrors.roles`) has a map φ and a scale s. Together
    with directions of mean square 1 (:meth:`~MirrorMap.direction`), ``width`` says how steps shrink
    for wide layers: with ½, a change of the weights changes what the layer puts out by as much at
    any width (the scaling of μP, Yang and Hu, ICML 2021), so that one learning rate serves all.
    Vectors and embeddings do not scale with it. ``depth`` says how steps shrink in networks of many
    layers, whose changes multiply; in those that normalise they do not, and ``depth_normed`` holds.

    Args:
        maps: a map for every kind: ``"input"``, ``"hidden"``, ``"output"``, ``"conv"``,
            ``"embedding"``, ``"vector"``.
        scales: s, by kind; 1 for those not given. width, depth: the exponents; 0 for steps that do
            not depend on the width or the depth. The width may be given by kind; it is ½ for those
            that are left out.
        depth_normed: the exponent of the depth in networks with layers that normalise, if it is
            another.

    >>> import torch
    >>> from mirrordescent.mirrors import Euclidean
    >>> mirror = ByKind({kind: Euclidean() for kind in KINDS}, {"vector": 0.1}, width=0.5)
    >>> mirror.to_primal({"0.weight": torch.ones(1, 2, 256), "0.bias": torch.ones(1, 2)})["0.bias"]
    tensor([[0.1000, 0.1000]])
    """

    def __init__(
        self,
        maps: Mapping[LayerKind, MirrorMap],
        scales: Mapping[LayerKind, float] | None = None,
        width: float | Mapping[LayerKind, float] = 0.5,
        depth: float = 0.0,
        depth_normed: float | None = None,
    ) -> None:
        super().__init__()
        if missing := [kind for kind in KINDS if kind not in maps]:
            raise ValueError(
                f"ByKind needs a map for every kind of layer; there is none for {', '.join(missing)}"
            )
        if unknown := [
            kind
            for kind in (*maps, *(scales or {}), *(width if isinstance(width, Mapping) else ()))
            if kind not in KINDS
        ]:
            raise ValueError(f"{unknown[0]!r} is no kind of layer; there are {', '.join(KINDS)}")
        given = dict(scales or {})
        require_positive(**{f"the scale of {kind}": scale for kind, scale in given.items()})
        self.width = dict(width) if isinstance(width, Mapping) else float(width)
        self.depth = float(depth)
        self.depth_normed = None if depth_normed is None else float(depth_normed)
        self.maps = nn.ModuleList([maps[kind] for kind in KINDS])
        self.log_scales = nn.Parameter(torch.tensor([given.get(kind, 1.0) for kind in KINDS]).log())
        for claim in ("exact", "elementwise", "proven", "defined_on_boundary"):
            setattr(self, claim, all(getattr(mirror, claim) for mirror in maps.values()))

    @property
    def scales(self) -> dict[LayerKind, float]:
        """s of every kind."""
        return dict(zip(KINDS, self.log_scales.detach().exp().tolist(), strict=True))

    @property
    def widths(self) -> dict[LayerKind, float]:
        """The exponent of the width of every kind."""
        given = self.width if isinstance(self.width, dict) else dict.fromkeys(KINDS, self.width)
        return {kind: float(given.get(kind, 0.5)) for kind in KINDS}

    def config(self) -> Config:
        maps = dict(zip(KINDS, self.maps, strict=True))
        return {
            "maps": maps,
            "scales": self.scales,
            "width": self.width,
            "depth": self.depth,
            **({} if self.depth_normed is None else {"depth_normed": self.depth_normed}),
        }

    def of(self, role: Role) -> ScaledMap:
        """Return the map of a tensor with this role."""
        mirror: Any = self.maps[KINDS.index(role.kind)]
        mirror = mirror.split(role.parts) if isinstance(mirror, SingularValues) else mirror
        width = 0.0 if role.kind in ("embedding", "vector") else self.widths[role.kind]
        depth = self.depth if self.depth_normed is None or not role.normed else self.depth_normed
        of_shape = (role.fan_in / TYPICAL_FAN_IN) ** -width * (role.depth / TYPICAL_DEPTH) ** -depth
        return ScaledMap(mirror, self.scales[role.kind] * of_shape)

    def _each(self, what: str, trees: tuple[Any, ...], *rest: Any) -> dict[str, Tensor]:
        """Call a method of each leaf's own map."""
        known = roles({name: tuple(leaf.shape[1:]) for name, leaf in trees[0].items()})
        return {
            name: getattr(self.of(role), what)(*(t[name] for t in trees), *rest)
            for name, role in known.items()
        }

    def direction_sizes(self, y: Tree) -> dict[str, float]:
        if isinstance(y, Tensor):
            _nameless()
        known = roles({name: tuple(leaf.shape[1:]) for name, leaf in y.items()})
        return {name: self.of(role).direction_size for name, role in known.items()}

    _potential = _to_dual = _to_primal = _direction = _nameless


def spectral_by_kind(p: float = 0.0, width: float = 0.5, products: int | None = 4) -> ByKind:
    """Return the geometry set by hand: σᵖ for input, hidden and convolution layers, a damped sign
    for all others.

    With p = 0 that is the polar factor of every matrix inside a network, as in Muon, and the sign
    of the momentum for the output layer, embeddings, biases and gains, where single entries mean
    something.
    """
    matrix = SpectralPower(p, products=products)
    entries = SoftSign(1e-2)
    inside = ("input", "hidden", "conv")
    return ByKind({kind: matrix if kind in inside else entries for kind in KINDS}, width=width)


def _dilated(domain: Domain, c: float) -> Domain:
    if isinstance(domain, WholeSpace | PositiveOrthant) or c == 1:  # cones stay as they are
        return domain
    if isinstance(domain, Box):
        return Box(c * domain.lower, c * domain.upper)
    if isinstance(domain, SpectralBall):
        return SpectralBall(c * domain.radius, domain.parts)
    raise TypeError(f"a map on {domain.description} cannot be scaled")
