"""What the tensors of a network are: input, hidden, output, convolution, embedding or vector, by
names and shapes.

A geometry tied by the kind of a layer, and not by its name, serves networks it has never seen.
Names and shapes tell most of it; a model tells all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from torch import nn

_NORMALISING = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

LayerKind: TypeAlias = Literal["input", "hidden", "output", "conv", "embedding", "vector"]

_EMBEDDING = re.compile(r"emb|wte|wpe|(^|[._])pos($|[._])", re.IGNORECASE)
_GAIN = re.compile(
    r"(^|[._])(weight|gain|gamma|scale)$"
)  # of a vector: that of a layer that normalises
_RECURRENT = re.compile(r"(.*)weight_(ih|hh)(_l\d+.*)?$")


class Role(NamedTuple):
    """The kind of a tensor, its blocks of rows, the inputs of every output, and what the network is
    like.

    The depth is the number of matrices and convolutions, embeddings not counted; ``normed`` says
    whether the network has layers that normalise.
    """

    kind: LayerKind
    parts: int = 1
    fan_in: int = 1
    depth: int = 1
    normed: bool = False


def roles(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Role]:
    """Tell the roles of tensors from their names and shapes, in the order of the layers.

    Tensors of at most one axis are vectors, those of three or more convolutions. Of the matrices,
    those called an embedding are one; ``weight_ih`` and ``weight_hh`` are hidden and divided into
    gates, ``in_proj_weight`` into three; the last of the others is the output, and the first the
    input if nothing but vectors comes before it. A network with vectors called weights or gains
    normalises.

    >>> roles({"0.weight": (50, 784), "0.bias": (50,), "2.weight": (40, 50), "4.weight": (10, 40)})["2.weight"]
    Role(kind='hidden', parts=1, fan_in=50, depth=3, normed=False)
    """
    found = {name: _alone(name, shape, shapes) for name, shape in shapes.items()}
    plain = [name for name, role in found.items() if role is None]
    before = [name for name, role in found.items() if role is None or role.kind != "vector"]
    for name in plain:
        kind: LayerKind = "hidden"
        if name == plain[-1]:
            kind = "output"
        elif name == before[0]:
            kind = "input"
        found[name] = Role(kind, 1, shapes[name][1])
    normed = any(
        len(shape) == 1 and shape != (1,) and _GAIN.search(name) for name, shape in shapes.items()
    )
    return _of_network({name: role for name, role in found.items() if role is not None}, normed)


def roles_of(model: nn.Module) -> dict[str, Role]:
    """Tell the roles of the parameters of a model: as :func:`roles` does, with what only its layers
    know.

    >>> from torch import nn
    >>> roles_of(nn.Sequential(nn.Conv2d(8, 8, 3, groups=4), nn.Flatten(), nn.Linear(32, 10)))["0.weight"]
    Role(kind='conv', parts=4, fan_in=18, depth=2, normed=False)
    """
    found = roles({name: tuple(p.shape) for name, p in model.named_parameters()})
    for prefix, layer in model.named_modules():
        name = f"{prefix}.weight".removeprefix(".")
        if name not in found:
            continue
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            found[name] = Role("embedding", 1, 1)
        elif isinstance(layer, nn.modules.conv._ConvNd) and not layer.transposed:
            found[name] = found[name]._replace(parts=layer.groups)
    return _of_network(found, any(map(_normalises, model.modules())))


def _normalises(layer: nn.Module) -> bool:
    """Tell whether a layer normalises: one of torch's, or one whose class is called a norm."""
    return isinstance(layer, _NORMALISING) or type(layer).__name__.lower().endswith("norm")


def _of_network(found: dict[str, Role], normed: bool) -> dict[str, Role]:
    depth = max(1, sum(role.kind not in ("vector", "embedding") for role in found.values()))
    return {name: role._replace(depth=depth, normed=normed) for name, role in found.items()}


def _alone(name: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> Role | None:
    """Return a role that can be told without the other layers, or None for a plain matrix."""
    if len(shape) <= 1:
        return Role("vector")
    if len(shape) > 2:
        return Role("conv", 1, math.prod(shape[1:]))
    if _EMBEDDING.search(name):
        return Role("embedding", 1, 1)
    if (match := _RECURRENT.match(name)) is not None:
        within = shapes.get(f"{match[1]}weight_hh{match[3] or ''}", shape)
        gates = within[0] // within[1] if within[0] % within[1] == 0 else 1
        return Role("hidden", gates if shape[0] % gates == 0 else 1, shape[1])
    if name.rpartition(".")[2] == "in_proj_weight" and shape[0] % 3 == 0:
        return Role("hidden", 3, shape[1])
    return None
