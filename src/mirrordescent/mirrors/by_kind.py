"""Maps for all tensors of a network, one for every kind of layer."""

from __future__ import annotations

import math
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
from mirrordescent.mirrors.start import Start
from mirrordescent.parts import Config
from mirrordescent.trees import Tree

KINDS: tuple[LayerKind, ...] = get_args(LayerKind)
SPECTRAL_BY_KIND_VERSION = 2
"""Version of :func:`spectral_by_kind`, which optimisers store in their states.

Version 1 computed directions of matrices by Newton–Schulz steps on all devices. Version 2 computes
them on processors by resolvents. Increase it whenever the steps of the default geometry change.
"""

TYPICAL_FAN_IN = 64
"""Fan-in at which the scale of a kind does not depend on ``width``."""

TYPICAL_DEPTH = 4
"""Depth at which the scale of a kind does not depend on ``depth``."""


TRAINED_PEAK = 1.67
"""Median over the matrices of a trained language model of the largest singular value, relative to
that of random matrices.
"""

SMALLEST_SCALE = 0.02
"""Scale of the weights at the start below which steps are not shortened further."""


class ScaledMap(MirrorMap):
    """ψ*(y) = c φ*(y):  ∇ψ*(y) = c ∇φ*(y),  ∇ψ(x) = ∇φ(x/c),  ψ(x) = c φ(x/c).

    Args:
        mirror: Map with the potential φ.
        c: Scale c > 0 of the steps.

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


def _require_names(*_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        "ByKind needs the parameters of a model as a dict of tensors by name; got a tensor"
    )


class ByKind(MirrorMap):
    """ψ*(y) = Σ_leaf c_leaf φ*_kind(y_leaf), with one φ and one scale for every kind of layer.

    .. code-block:: none

        c_leaf = s_kind · (fan_in/64)^−width_kind · (layers/4)^−depth

    A few numbers then serve any network. Each kind of layer (:func:`~mirrordescent.mirrors.roles`)
    has a map φ and a scale s. Directions have mean square 1 (:meth:`~MirrorMap.direction`), and
    ``width`` is the exponent by which steps shrink in wide layers. With ½, a step changes the
    output of a layer by the same amount at every width (the scaling of μP, Yang and Hu, ICML 2021),
    so that one learning rate serves all. Vectors and embeddings do not scale with the width.
    ``depth`` is the exponent by which steps shrink in deep networks, because changes of layers
    multiply. With normalisation layers they do not multiply, and ``depth_normed`` is used.

    Two further numbers condition steps on the weights at the start of a run
    (:mod:`~mirrordescent.mirrors.start`), if these are known:

    .. code-block:: none

        c ← c · min(1, scale)^initial                       scale of the network's weights
        c ← c · min(1, trained · rms/c)^p                   p = log peak/log 1.67, within [0, 1]

    The first shortens the steps of networks whose weights are small for their fan-in, such as sine
    networks. The second makes the steps of trained weights proportional to their size. p is 0 for
    random and 1 for trained weights. Vectors take the factor of a hidden layer of fan-in 64 with
    the default initialisation. Inner layers and vectors count as trained if most of the network is.

    Args:
        maps: Map for every kind: ``"input"``, ``"hidden"``, ``"output"``, ``"conv"``,
            ``"embedding"``, ``"vector"``.
        scales: s by kind; 1 for missing kinds.
        width: Exponent of the width, one for all kinds or one by kind; ½ for missing kinds, 0 for
            steps that do not depend on the width.
        depth: Exponent of the depth; 0 for steps that do not depend on the depth.
        depth_normed: Exponent of the depth in networks with normalisation layers; ``depth`` if it
            is not given.
        initial: Exponent of the scale of the weights at the start; 0 for none.
        trained: Size of a step over that of the weights, for trained weights; None to treat them
            like random ones.

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
        initial: float = 0.0,
        trained: float | None = None,
    ) -> None:
        super().__init__()
        missing = [kind for kind in KINDS if kind not in maps]
        if missing:
            raise ValueError(
                f"ByKind needs a map for every kind of layer; missing: {', '.join(missing)}"
            )
        given = dict(scales or {})
        named: list[str] = [*maps, *given]
        if isinstance(width, Mapping):
            named += width
        for kind in named:
            if kind not in KINDS:
                raise ValueError(
                    f"{kind!r} is not a kind of layer; the kinds are {', '.join(KINDS)}"
                )
        require_positive(**{f"the scale of {kind}": scale for kind, scale in given.items()})
        self.width = dict(width) if isinstance(width, Mapping) else float(width)
        self.depth = float(depth)
        self.depth_normed = None if depth_normed is None else float(depth_normed)
        if not initial >= 0:
            raise ValueError(f"initial must be ≥ 0, got {initial}")
        if trained is not None:
            require_positive(trained=trained)
        self.initial = float(initial)
        self.trained = None if trained is None else float(trained)
        self.maps = nn.ModuleList([maps[kind] for kind in KINDS])
        self.log_scales = nn.Parameter(torch.tensor([given.get(kind, 1.0) for kind in KINDS]).log())
        for claim in ("exact", "elementwise", "proven", "defined_on_boundary"):
            setattr(self, claim, all(getattr(mirror, claim) for mirror in maps.values()))

    @property
    def scales(self) -> dict[LayerKind, float]:
        """The scale s of every kind."""
        return dict(zip(KINDS, self.log_scales.detach().exp().tolist(), strict=True))

    @property
    def widths(self) -> dict[LayerKind, float]:
        """The exponent of the width of every kind."""
        given = self.width if isinstance(self.width, dict) else dict.fromkeys(KINDS, self.width)
        return {kind: float(given.get(kind, 0.5)) for kind in KINDS}

    def config(self) -> Config:
        config: Config = {
            "maps": dict(zip(KINDS, self.maps, strict=True)),
            "scales": self.scales,
            "width": self.width,
            "depth": self.depth,
        }
        if self.depth_normed is not None:
            config["depth_normed"] = self.depth_normed
        if self.initial:
            config["initial"] = self.initial
        if self.trained is not None:
            config["trained"] = self.trained
        return config

    @property
    def needs_start(self) -> bool:
        """Whether steps depend on the weights at the start of a run."""
        return self.initial > 0 or self.trained is not None

    def of(self, role: Role, start: Start | None = None) -> ScaledMap:
        """Return the map of a tensor with this role.

        Args:
            role: Role of the tensor.
            start: Features of the weights at the start; None if they are not known.
        """
        mirror: Any = self.maps[KINDS.index(role.kind)]
        if isinstance(mirror, SingularValues):
            mirror = mirror.with_layout(role.layout)
        width = self.widths[role.kind]
        if role.kind in ("embedding", "vector"):
            width = 0.0
        depth = self.depth
        if self.depth_normed is not None and role.normed:
            depth = self.depth_normed
        width_factor = (role.fan_in / TYPICAL_FAN_IN) ** -width
        depth_factor = (role.depth / TYPICAL_DEPTH) ** -depth
        c = self.scales[role.kind] * (width_factor * depth_factor)
        return ScaledMap(mirror, c if start is None else self._conditioned(c, role.kind, start))

    def _conditioned(self, c: float, kind: LayerKind, start: Start) -> float:
        """Return the scale c, conditioned on the weights at the start."""
        c *= min(1.0, max(SMALLEST_SCALE, start.network_scale)) ** self.initial
        if self.trained is None:
            return c
        if kind == "vector":
            factor = self.trained / (math.sqrt(3 * TYPICAL_FAN_IN) * self.scales["hidden"])
        elif start.rms > 0:
            factor = self.trained * start.rms / c
        else:
            return c
        peak = start.peak if kind == "output" else max(start.peak, start.network_peak)
        share = min(1.0, max(0.0, math.log(peak) / math.log(TRAINED_PEAK)))
        return c * min(1.0, factor) ** share

    def _each(self, what: str, trees: tuple[Any, ...], *rest: Any) -> dict[str, Tensor]:
        """Call a method of the map of each leaf."""
        result: dict[str, Tensor] = {}
        for name, role in _roles_of_leaves(trees[0]).items():
            method = getattr(self.of(role), what)
            result[name] = method(*(tree[name] for tree in trees), *rest)
        return result

    def direction_sizes(self, y: Tree) -> dict[str, float]:
        if isinstance(y, Tensor):
            _require_names()
        return {name: self.of(role).direction_size for name, role in _roles_of_leaves(y).items()}

    _potential = _to_dual = _to_primal = _direction = _require_names


def _roles_of_leaves(tree: Mapping[str, Tensor]) -> dict[str, Role]:
    """Return the roles of leaves with a batch dimension."""
    return roles({name: tuple(leaf.shape[1:]) for name, leaf in tree.items()})


def spectral_by_kind(p: float = 0.0, width: float = 0.5, products: int | None = 4) -> ByKind:
    """Return the geometry set by hand: powers of singular values, and signs.

    Input, hidden and convolution layers get σᵖ, all other tensors a damped sign. With p = 0, every
    matrix inside a network gets the polar factor of its momentum, as in Muon. The output layer,
    embeddings, biases and gains, whose single entries have a meaning, get the sign.

    Args:
        p: Power of the singular values.
        width: See :class:`ByKind`.
        products: See :class:`SingularValues`.
    """
    matrix = SpectralPower(p, products=products)
    entries = SoftSign(1e-2)
    inside = ("input", "hidden", "conv")
    return ByKind({kind: matrix if kind in inside else entries for kind in KINDS}, width=width)


def _dilated(domain: Domain, c: float) -> Domain:
    """Return c times a domain."""
    if isinstance(domain, WholeSpace | PositiveOrthant) or c == 1:  # a cone does not change
        return domain
    if isinstance(domain, Box):
        return Box(c * domain.lower, c * domain.upper)
    if isinstance(domain, SpectralBall):
        return SpectralBall(c * domain.radius, *domain.layout)
    raise TypeError(f"ScaledMap does not support the domain of the map: {domain.description}")
