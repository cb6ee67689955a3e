"""Roles of the tensors of a network: input, hidden, output, convolution, embedding or vector.

A geometry that depends on roles, not on names, can be used on networks that it was not learned on.
Names and shapes determine most roles; the layers of a model determine all.
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
_GAIN = re.compile(r"(^|[._])(weight|gain|gamma|scale)$")  # a vector of a normalisation layer
_RECURRENT = re.compile(r"(.*)weight_(ih|hh)(_l\d+.*)?$")


class Role(NamedTuple):
    """The role of a tensor in a network.

    Args:
        kind: Kind of the layer.
        parts: Number of blocks of rows that are matrices of their own.
        fan_in: Number of inputs of every output.
        depth: Number of matrices and convolutions in the network, without embeddings.
        normed: Whether the network has normalisation layers.
    """

    kind: LayerKind
    parts: int = 1
    fan_in: int = 1
    depth: int = 1
    normed: bool = False


def roles(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Role]:
    """Return the roles of tensors by their names and shapes, given in the order of the layers.

    Tensors with at most one axis are vectors, tensors with three or more are convolutions. Matrices
    get these roles:

    - Matrices with the name of an embedding are embeddings.
    - ``weight_ih`` and ``weight_hh`` are hidden and divided into gates.
    - ``in_proj_weight`` is hidden and divided into three parts.
    - The last other matrix is the output.
    - The first other matrix is the input if only vectors come before it.
    - All other matrices are hidden.

    A network with vectors called weights or gains has normalisation layers.

    Args:
        shapes: Shapes by name.

    >>> shapes = {"0.weight": (50, 784), "0.bias": (50,), "2.weight": (40, 50), "4.weight": (9, 40)}
    >>> roles(shapes)["2.weight"]
    Role(kind='hidden', parts=1, fan_in=50, depth=3, normed=False)
    """
    result: dict[str, Role] = {}
    plain = [name for name, shape in shapes.items() if _role_by_name(name, shape, shapes) is None]
    first_matrix = next((name for name, shape in shapes.items() if len(shape) > 1), None)
    for name, shape in shapes.items():
        role = _role_by_name(name, shape, shapes)
        if role is None:
            kind: LayerKind = "hidden"
            if name == plain[-1]:
                kind = "output"
            elif name == first_matrix:
                kind = "input"
            role = Role(kind, 1, shape[1])
        result[name] = role
    normed = any(
        len(shape) == 1 and shape != (1,) and _GAIN.search(name) for name, shape in shapes.items()
    )
    return _in_network(result, normed)


def roles_of(model: nn.Module) -> dict[str, Role]:
    """Return the roles of the parameters of a model.

    They are those of :func:`roles`, corrected by the layers: embeddings, groups of convolutions,
    and normalisation layers without gains.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(8, 8, 3, groups=4), nn.Flatten(), nn.Linear(32, 10))
    >>> roles_of(model)["0.weight"]
    Role(kind='conv', parts=4, fan_in=18, depth=2, normed=False)
    """
    result = roles({name: tuple(p.shape) for name, p in model.named_parameters()})
    for prefix, layer in model.named_modules():
        name = f"{prefix}.weight".removeprefix(".")
        if name not in result:
            continue
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            result[name] = Role("embedding", 1, 1)
        elif isinstance(layer, nn.modules.conv._ConvNd) and not layer.transposed:
            result[name] = result[name]._replace(parts=layer.groups)
    return _in_network(result, any(map(_normalises, model.modules())))


def _normalises(layer: nn.Module) -> bool:
    """Return whether a layer is a normalisation layer of torch, or of a class called a norm."""
    return isinstance(layer, _NORMALISING) or type(layer).__name__.lower().endswith("norm")


def _in_network(found: dict[str, Role], normed: bool) -> dict[str, Role]:
    """Return roles with the depth of the network, and whether it has normalisation layers."""
    depth = max(1, sum(role.kind not in ("vector", "embedding") for role in found.values()))
    return {name: role._replace(depth=depth, normed=normed) for name, role in found.items()}


def _role_by_name(
    name: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]
) -> Role | None:
    """Return the role of a tensor by its own name and shape, or None for a plain matrix."""
    if len(shape) <= 1:
        return Role("vector")
    if len(shape) > 2:
        return Role("conv", 1, math.prod(shape[1:]))
    if _EMBEDDING.search(name):
        return Role("embedding", 1, 1)
    match = _RECURRENT.match(name)
    if match is not None:
        recurrent = shapes.get(f"{match[1]}weight_hh{match[3] or ''}", shape)
        gates = recurrent[0] // recurrent[1] if recurrent[0] % recurrent[1] == 0 else 1
        return Role("hidden", gates if shape[0] % gates == 0 else 1, shape[1])
    if name.rpartition(".")[2] == "in_proj_weight" and shape[0] % 3 == 0:
        return Role("hidden", 3, shape[1])
    return None
