"""One map for every parameter tensor of a network, with entries tied by the network's
symmetries.
"""

import copy
import warnings
from collections.abc import Mapping
from typing import Any, Literal, NoReturn, TypeAlias, cast, get_args

import torch
from torch import Tensor, nn

from mirrordescent._internal.suggestions import require_known
from mirrordescent.domains import Domain, WholeSpace
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.mirrors.spline import Spline
from mirrordescent.mirrors.symmetry import symmetries
from mirrordescent.mirrors.tied import Multipliers, Tied
from mirrordescent.parts import Config
from mirrordescent.trees import Tree

Kind: TypeAlias = Literal["diagonal", "spline"]
Ties: TypeAlias = Literal["orbit", "paper", "tensor"]
_KINDS: dict[str, type[Tied]] = {"diagonal": Multipliers, "spline": Spline}


def _nameless(*_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        "a layer-wise map takes the parameters of a model, a dict of tensors by name; got one tensor"
    )


class Layerwise(MirrorMap):
    """ψ(x) = Σ_name ψ_name(x_name) on dicts of tensors: each leaf has a map of its own.

    Args:
        maps: a map for every leaf, by name.
        shapes: of one sample of every leaf. Trees with other names or shapes are refused.

    >>> import torch
    >>> from mirrordescent.mirrors import Diagonal, Euclidean
    >>> mirror = Layerwise({"0.weight": Diagonal(2.0), "0.bias": Euclidean()})
    >>> mirror.to_dual({"0.weight": torch.ones(1, 2), "0.bias": torch.ones(1, 1)})
    {'0.weight': tensor([[2., 2.]]), '0.bias': tensor([[1.]])}
    """

    def __init__(
        self, maps: Mapping[str, MirrorMap], shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> None:
        super().__init__()
        if not maps:
            raise ValueError("a layer-wise map needs a map for at least one tensor")
        if shapes is not None and set(shapes) != set(maps):
            raise ValueError(
                "a layer-wise map needs the shapes of the same tensors that it has maps for"
            )
        self.names = tuple(maps)
        self.shapes = None if shapes is None else {name: tuple(shapes[name]) for name in maps}
        self.maps = nn.ModuleList(maps.values())  # not a ModuleDict, which refuses names with dots
        for claim in ("exact", "elementwise", "proven", "defined_on_boundary"):
            setattr(self, claim, all(getattr(mirror, claim) for mirror in maps.values()))
        self.certified = any(mirror.certified for mirror in maps.values())
        self.primal_domain = _product({name: mirror.primal_domain for name, mirror in maps.items()})
        self.dual_domain = _product({name: mirror.dual_domain for name, mirror in maps.items()})

    def __getitem__(self, name: str) -> MirrorMap:
        """Return the map of one leaf."""
        return self.by_name[name]

    @property
    def by_name(self) -> dict[str, MirrorMap]:
        """The maps of all leaves."""
        return dict(zip(self.names, self.maps, strict=True))  # type: ignore[arg-type]

    @property
    def strong_convexity(self) -> StrongConvexity | None:
        """The smallest α, if all maps state one in the same norm."""
        constants = [
            constant for mirror in self.by_name.values() if (constant := mirror.strong_convexity)
        ]
        if len(constants) < len(self.names) or len({constant.p for constant in constants}) > 1:
            return None
        return min(constants)

    @property
    def continuous(self) -> bool | None:
        known = [mirror.continuous for mirror in self.by_name.values()]
        return False if False in known else None if None in known else True

    @property
    def smoothness(self) -> float | None:
        known = [mirror.smoothness for mirror in self.by_name.values()]
        return None if None in known else max(cast("list[float]", known))

    def config(self) -> Config:
        return {"maps": self.by_name, "shapes": self.shapes}

    def dual_start(self, x0: Tree) -> Tree:
        return self._each("dual_start", (x0,))

    def direction_sizes(self, y: Tree) -> dict[str, float]:
        return {name: mirror.direction_size for name, mirror in self.by_name.items()}

    _potential = _to_dual = _to_primal = _step = _divergence = _nameless

    def _each(self, what: str, trees: tuple[Any, ...], *rest: Any) -> dict[str, Tensor]:
        """Call a method of each leaf's own map."""
        maps = self.by_name
        checked = [self._checked(tree) for tree in trees]
        return {
            name: getattr(maps[name], what)(*(tree[name] for tree in checked), *rest)
            for name in checked[0]
        }

    def _checked(self, tree: Tree) -> dict[str, Tensor]:
        tree = _by_name(tree)
        for name in dict.fromkeys((*self.names, *tree)):
            if name not in tree or name not in self.names:
                other = "has no" if name not in tree else "also has"
                raise ValueError(f"a map made for another model: this one {other} {name!r}")
            shape = tuple(tree[name].shape[1:])
            if self.shapes is not None and shape != self.shapes[name]:
                raise ValueError(
                    f"a map made for another model: {name!r} has the shape {self.shapes[name]} there "
                    f"and {shape} here, after the leading dimension, which is the batch"
                )
        return tree

    def extra_repr(self) -> str:
        return ", ".join(self.names)


def layerwise(
    model: nn.Module,
    kind: Kind = "diagonal",
    ties: Ties = "paper",
    example: Tensor | None = None,
    **options: Any,
) -> Layerwise:
    """Return a map for the trainable parameters of a network, with as few numbers as its symmetries
    allow.

    Args:
        model: the network.
        kind: what each group of tied entries has. ``"diagonal"``:
            :class:`~mirrordescent.mirrors.tied.Multipliers` of the gradient, ``"spline"``: a
            :class:`~mirrordescent.mirrors.spline.Spline`.
        ties: which entries share. ``"orbit"``: those that a permutation of hidden units can
            exchange, as every equivariant map must. ``"paper"``: in addition all input features of
            a dense layer behind a flattened convolution, which is not a symmetry. ``"tensor"``: all
            entries of a tensor.
        example: see :func:`~mirrordescent.mirrors.symmetry.symmetries`.
        options: further arguments of the maps.

    >>> model = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 1))
    >>> sum(p.numel() for p in layerwise(model).parameters())
    5
    """
    require_known(kind, _KINDS, "kind of map")
    model = _as_written(model)
    groups = _ties(model, ties, example)
    parameters = _trainable(model)
    maps = {name: _KINDS[kind](groups[name], **options).to(p) for name, p in parameters.items()}
    return Layerwise(maps, {name: tuple(p.shape) for name, p in parameters.items()})


def transfer(
    mirror: Layerwise, model: nn.Module, ties: Ties = "paper", example: Tensor | None = None
) -> Layerwise:
    """Use a map learned on one network for another: wider, deeper, or with other inputs.

    Tensors are matched by their role. Weights are matched with weights and biases with biases; the
    first of each with the first, the last with the last, and those between by their relative depth.
    A tensor with as many groups of entries as its counterpart takes over their numbers; others take
    their mean.
    """
    if mirror.shapes is None:
        raise ValueError("to be transferred, a layer-wise map must know the shapes it was made for")
    model = _as_written(model)
    groups = _ties(model, ties, example)
    parameters = _trainable(model)
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    learned = _by_role(mirror.shapes)
    maps = {}
    for role, names in _by_role(shapes).items():
        if role not in learned:
            raise ValueError(
                f"nothing was learned that could serve {names[0]!r}: the map has no tensor of that role"
            )
        for i, name in enumerate(names):
            twin = mirror[learned[role][_counterpart(i, len(names), len(learned[role]))]]
            made = twin.regrouped(groups[name]) if isinstance(twin, Tied) else copy.deepcopy(twin)
            maps[name] = made.to(parameters[name])
    return Layerwise({name: maps[name] for name in parameters}, shapes)


def _as_written(model: nn.Module) -> nn.Module:
    """Return the model inside one that was compiled, whose parameters have the names that
    they had.
    """
    return getattr(model, "_orig_mod", model)


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _ties(model: nn.Module, ties: Ties, example: Tensor | None) -> dict[str, Tensor]:
    """Return the groups of every trainable parameter, by name."""
    require_known(ties, get_args(Ties), "ties")
    if ties == "tensor":
        return {name: torch.zeros((), dtype=torch.long) for name in _trainable(model)}
    symmetry = symmetries(model, example)
    if symmetry.not_understood:
        warnings.warn(
            f"no symmetries are known around {', '.join(symmetry.not_understood)}: entries there are left untied",
            stacklevel=3,
        )
    return {name: symmetry.orbits(name, whole_axes=ties == "paper") for name in _trainable(model)}


def _by_role(shapes: Mapping[str, tuple[int, ...]]) -> dict[tuple[str, bool], list[str]]:
    """Sort tensors by what they are: weights or biases by name, matrices or vectors by shape."""
    roles: dict[tuple[str, bool], list[str]] = {}
    for name, shape in shapes.items():
        roles.setdefault((name.rpartition(".")[2], len(shape) > 1), []).append(name)
    return roles


def _counterpart(i: int, n: int, m: int) -> int:
    """Return which of m layers corresponds to the i-th of n: hidden ones to hidden ones, if there
    are any.
    """
    if i in (0, n - 1):
        return 0 if i == 0 else m - 1
    if m < 3:
        return round(i * (m - 1) / (n - 1))
    return 1 + round((i - 1) * (m - 3) / max(n - 3, 1))


class _ByName(Domain):
    """A product of domains, one for each leaf of a dict."""

    def __init__(self, domains: dict[str, Domain]) -> None:
        self.domains = domains
        self.description = "; ".join(
            f"{name}: {domain.description}" for name, domain in domains.items()
        )

    def contains(self, x: Tree, *, closed: bool = False) -> Tensor:
        """Tell per sample whether every leaf lies in its domain: (batch,) bool."""
        parts = [
            self.domains[name].contains(leaf, closed=closed) for name, leaf in _by_name(x).items()
        ]
        return torch.stack(parts).all(0)

    def project(self, x: Tree) -> Tree:
        return {name: self.domains[name]._project(leaf) for name, leaf in _by_name(x).items()}

    def inner_point(self, like: Tree) -> Tree:
        return {
            name: self.domains[name]._inner_point(leaf) for name, leaf in _by_name(like).items()
        }

    def require(self, x: Tree, what: str, of: str, *, closed: bool = False) -> None:
        for name, leaf in _by_name(x).items():
            self.domains[name].require(
                leaf, f"{what}[{name!r}]", f"its part of {of}", closed=closed
            )

    _contains = _project = _inner_point = _nameless


def _product(domains: dict[str, Domain]) -> Domain:
    everywhere = all(isinstance(domain, WholeSpace) for domain in domains.values())
    return WholeSpace() if everywhere else _ByName(domains)


def _by_name(tree: Tree) -> dict[str, Tensor]:
    return _nameless() if isinstance(tree, Tensor) else tree
