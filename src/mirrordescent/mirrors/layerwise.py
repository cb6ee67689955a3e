"""One map per parameter tensor of a network, with entries tied by the network's symmetries."""

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


def _reject_tensor(*_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        "a layer-wise map needs the parameters of a model, a dict of tensors by name; "
        "got one tensor"
    )


class Layerwise(MirrorMap):
    """ψ(x) = Σ_name ψ_name(x_name) on dicts of tensors, with one map per leaf.

    Args:
        maps: Maps by name of the leaf.
        shapes: Shapes of one sample by name of the leaf. Dicts with other names or shapes raise an
            error.

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
            raise ValueError("maps must have a map for at least one tensor, got an empty dict")
        if shapes is not None and set(shapes) != set(maps):
            raise ValueError(
                f"shapes must have the same names as maps, {sorted(maps)}, got {sorted(shapes)}"
            )
        self.names = tuple(maps)
        self.shapes = None if shapes is None else {name: tuple(shapes[name]) for name in maps}
        self.maps = nn.ModuleList(maps.values())  # a ModuleDict does not accept names with dots
        for fact in ("exact", "elementwise", "proven", "defined_on_boundary"):
            setattr(self, fact, all(getattr(mirror, fact) for mirror in maps.values()))
        self.certified = any(mirror.certified for mirror in maps.values())
        self.primal_domain = _product({name: mirror.primal_domain for name, mirror in maps.items()})
        self.dual_domain = _product({name: mirror.dual_domain for name, mirror in maps.items()})

    def __getitem__(self, name: str) -> MirrorMap:
        """Return the map of one leaf."""
        return self.by_name[name]

    @property
    def by_name(self) -> dict[str, MirrorMap]:
        """The maps of all leaves by name."""
        return dict(zip(self.names, self.maps, strict=True))  # type: ignore[arg-type]

    @property
    def strong_convexity(self) -> StrongConvexity | None:
        """The smallest α, if all maps state one in the same norm."""
        constants = []
        for mirror in self.by_name.values():
            constant = mirror.strong_convexity
            if constant is None:
                return None
            constants.append(constant)
        same_norm = len({constant.p for constant in constants}) == 1
        return min(constants) if same_norm else None

    @property
    def continuous(self) -> bool | None:
        """Whether all maps are continuous; None if one is unknown and none is discontinuous."""
        answers = [mirror.continuous for mirror in self.by_name.values()]
        if False in answers:
            return False
        return None if None in answers else True

    @property
    def smoothness(self) -> float | None:
        """The largest constant; None if one is unknown."""
        constants = [mirror.smoothness for mirror in self.by_name.values()]
        return None if None in constants else max(cast("list[float]", constants))

    def config(self) -> Config:
        return {"maps": self.by_name, "shapes": self.shapes}

    def dual_start(self, x0: Tree) -> Tree:
        return self._each("dual_start", (x0,))

    def direction_sizes(self, y: Tree) -> dict[str, float]:
        return {name: mirror.direction_size for name, mirror in self.by_name.items()}

    _potential = _to_dual = _to_primal = _step = _divergence = _reject_tensor

    def _each(self, what: str, trees: tuple[Any, ...], *rest: Any) -> dict[str, Tensor]:
        """Apply the operation of each leaf's own map."""
        maps = self.by_name
        checked = [self._checked(tree) for tree in trees]
        results = {}
        for name in checked[0]:
            operation = getattr(maps[name], what)
            results[name] = operation(*(tree[name] for tree in checked), *rest)
        return results

    def _checked(self, tree: Tree) -> dict[str, Tensor]:
        """Return the dict; raise an error if its names or shapes are those of another model."""
        tree = _as_dict(tree)
        for name in self.names:
            if name not in tree:
                raise ValueError(f"a map made for another model: this one has no {name!r}")
        for name, leaf in tree.items():
            if name not in self.names:
                raise ValueError(f"a map made for another model: this one also has {name!r}")
            shape = tuple(leaf.shape[1:])
            if self.shapes is not None and shape != self.shapes[name]:
                raise ValueError(
                    f"a map made for another model: {name!r} must have shape {self.shapes[name]} "
                    f"after the leading batch dimension, got {shape}"
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
    """Return a map for the trainable parameters of a network, tied by its symmetries.

    Args:
        model: Network.
        kind: Map of each group of tied entries: ``"diagonal"`` for
            :class:`~mirrordescent.mirrors.tied.Multipliers` of the gradient, or ``"spline"`` for a
            :class:`~mirrordescent.mirrors.spline.Spline`.
        ties: Entries that share parameters. ``"orbit"`` ties entries that a permutation of hidden
            units exchanges, as every equivariant map must. ``"paper"`` also ties all input features
            of a dense layer behind a flattened convolution, which is not a symmetry. ``"tensor"``
            ties all entries of a tensor.
        example: Input of the network; see :func:`~mirrordescent.mirrors.symmetry.symmetries`.
        options: Further arguments of the maps.

    >>> model = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 1))
    >>> sum(p.numel() for p in layerwise(model).parameters())
    5
    """
    require_known(kind, _KINDS, "kind of map")
    model = _uncompiled(model)
    groups = _groups(model, ties, example)
    parameters = _trainable(model)
    maps = {name: _KINDS[kind](groups[name], **options).to(p) for name, p in parameters.items()}
    return Layerwise(maps, {name: tuple(p.shape) for name, p in parameters.items()})


def transfer(
    mirror: Layerwise, model: nn.Module, ties: Ties = "paper", example: Tensor | None = None
) -> Layerwise:
    """Return a map for another network: wider, deeper, or with other inputs.

    Tensors are matched by role: weights with weights and biases with biases, the first with the
    first, the last with the last, and those between by relative depth. If a tensor has as many
    groups of entries as its counterpart, it takes over their parameters; otherwise it takes their
    mean.

    Args:
        mirror: Learned map.
        model: Other network.
        ties: Entries that share parameters; see :func:`layerwise`.
        example: Input of the other network; see
            :func:`~mirrordescent.mirrors.symmetry.symmetries`.
    """
    if mirror.shapes is None:
        raise ValueError("transfer needs a map that was constructed with shapes")
    model = _uncompiled(model)
    groups = _groups(model, ties, example)
    parameters = _trainable(model)
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    learned = _by_role(mirror.shapes)
    maps = {}
    for role, names in _by_role(shapes).items():
        if role not in learned:
            raise ValueError(
                f"the map must have a tensor with the role of {names[0]!r}, but has none"
            )
        for i, name in enumerate(names):
            index = _counterpart(i, len(names), len(learned[role]))
            source = mirror[learned[role][index]]
            if isinstance(source, Tied):
                target: MirrorMap = source.regrouped(groups[name])
            else:
                target = copy.deepcopy(source)
            maps[name] = target.to(parameters[name])
    return Layerwise({name: maps[name] for name in parameters}, shapes)


def _uncompiled(model: nn.Module) -> nn.Module:
    """Return the original of a model wrapped by ``torch.compile``, which renames parameters."""
    return getattr(model, "_orig_mod", model)


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _groups(model: nn.Module, ties: Ties, example: Tensor | None) -> dict[str, Tensor]:
    """Return the groups of tied entries of every trainable parameter, by name."""
    require_known(ties, get_args(Ties), "ties")
    if ties == "tensor":
        return {name: torch.zeros((), dtype=torch.long) for name in _trainable(model)}
    symmetry = symmetries(model, example)
    if symmetry.not_understood:
        warnings.warn(
            f"the symmetries of {', '.join(symmetry.not_understood)} are unknown: "
            "the entries of these tensors are left untied",
            stacklevel=3,
        )
    return {name: symmetry.orbits(name, whole_axes=ties == "paper") for name in _trainable(model)}


def _by_role(shapes: Mapping[str, tuple[int, ...]]) -> dict[tuple[str, bool], list[str]]:
    """Group names by role: the last part of the name, and whether the tensor is a vector."""
    roles: dict[tuple[str, bool], list[str]] = {}
    for name, shape in shapes.items():
        roles.setdefault((name.rpartition(".")[2], len(shape) > 1), []).append(name)
    return roles


def _counterpart(i: int, n: int, m: int) -> int:
    """Return the index among m layers that corresponds to layer i of n.

    Hidden layers correspond to hidden layers, if there are any.
    """
    if i in (0, n - 1):
        return 0 if i == 0 else m - 1
    if m < 3:
        return round(i * (m - 1) / (n - 1))
    return 1 + round((i - 1) * (m - 3) / max(n - 3, 1))


class _ProductDomain(Domain):
    """A product of domains, one per leaf of a dict."""

    def __init__(self, domains: dict[str, Domain]) -> None:
        self.domains = domains
        self.description = "; ".join(
            f"{name}: {domain.description}" for name, domain in domains.items()
        )

    def contains(self, x: Tree, *, closed: bool = False) -> Tensor:
        """Tell per sample whether every leaf lies in its domain: (batch,) bool."""
        inside = [
            self.domains[name].contains(leaf, closed=closed) for name, leaf in _as_dict(x).items()
        ]
        return torch.stack(inside).all(0)

    def project(self, x: Tree) -> Tree:
        return {name: self.domains[name]._project(leaf) for name, leaf in _as_dict(x).items()}

    def inner_point(self, like: Tree) -> Tree:
        leaves = _as_dict(like).items()
        return {name: self.domains[name]._inner_point(leaf) for name, leaf in leaves}

    def require(self, x: Tree, what: str, of: str, *, closed: bool = False) -> None:
        for name, leaf in _as_dict(x).items():
            self.domains[name].require(
                leaf, f"{what}[{name!r}]", f"its part of {of}", closed=closed
            )

    _contains = _project = _inner_point = _reject_tensor


def _product(domains: dict[str, Domain]) -> Domain:
    everywhere = all(isinstance(domain, WholeSpace) for domain in domains.values())
    return WholeSpace() if everywhere else _ProductDomain(domains)


def _as_dict(tree: Tree) -> dict[str, Tensor]:
    return _reject_tensor() if isinstance(tree, Tensor) else tree
