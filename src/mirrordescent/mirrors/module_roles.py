"""Roles of the parameters of a model, from its layers and their order along the data flow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils import parametrize

from mirrordescent._internal.user_warnings import warn_user
from mirrordescent.mirrors.data_flow import DataFlow, data_flow
from mirrordescent.mirrors.roles import (
    LOOKED_UP,
    LORA,
    Role,
    Shape,
    ends_of_heads,
    has_window,
    in_network,
    is_one_vector,
    matrix_role,
    stack_role,
)

_NORMALISING = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_GATES = {"LSTM": 4, "LSTMCell": 4, "GRU": 3, "GRUCell": 3}
_DERIVED = ("g", "v", "orig")  # of weight and spectral normalisation by hooks


class _Place(NamedTuple):
    """A parameter in the layer that uses it.

    Attributes:
        path: Name of the layer.
        layer: The layer.
        attribute: Name of the parameter in the layer, without parametrisations.
        name: Name of the parameter in the model.
        tensor: The parameter.
        is_scale: Whether it holds the lengths of rows in a weight normalisation.
    """

    path: str
    layer: nn.Module
    attribute: str
    name: str
    tensor: Tensor
    is_scale: bool = False


class _Found(NamedTuple):
    """A role, whether the layer may be an input or output layer, and whether the role is sure."""

    role: Role
    plain: bool = False
    sure: bool = True


def roles_of(model: nn.Module, *, warn: bool = True) -> dict[str, Role]:
    """Return the roles of the parameters of a model, by name.

    The layer that uses a parameter determines its role: dense layers, convolutions with their
    groups, embeddings, attention, recurrent layers with their gates, normalisation layers, layers
    of Hugging Face that are stored as (in, out), low-rank adapters, and weights under a
    parametrisation. A tensor that an embedding shares with another layer is an embedding. Other
    tensors with three or more axes are stacks of matrices (…, in, out).

    A dense layer is an output if its results pass through no other weights, and an input if its
    arguments have passed through none. Both are read from the graph of operations. If torch.fx
    cannot trace the model, names of heads and the order of the layers are used.

    Args:
        model: Model, which may be wrapped by ``torch.compile`` or ``DistributedDataParallel``.
        warn: Whether to warn of tensors whose roles are uncertain.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(8, 8, 3, groups=4), nn.Flatten(), nn.Linear(32, 10))
    >>> roles_of(model)["0.weight"].parts
    4
    >>> roles_of(model)["2.weight"].kind
    'output'
    """
    model = _unwrapped(model)
    flow = data_flow(model)
    found: dict[str, _Found] = {}
    places: dict[str, _Place] = {}
    for place in _places(model):
        new = _found_at(place, flow)
        if place.name not in found or new.role.kind == "embedding":
            found[place.name] = new
            places[place.name] = place
    order = {name: found[name] for name, _ in model.named_parameters()}
    plain = [name for name, each in order.items() if each.plain]
    doubtful = [name for name, each in order.items() if not each.sure]
    result = {name: each.role for name, each in order.items()}
    if flow is not None:
        outputs = {name for name in plain if name in flow.last}
        inputs = {name for name in plain if name in flow.first} - outputs
    else:
        outputs, sure = _guessed_outputs(model, plain, places, result)
        doubtful += [] if sure else sorted(outputs)
        first = next((name for name, role in result.items() if role.kind != "vector"), None)
        inputs = {first} & set(plain) - outputs  # type: ignore[assignment]
    for name in inputs:
        result[name] = result[name]._replace(kind="input")
    for name in outputs:
        result[name] = result[name]._replace(kind="output")
    if warn and doubtful:
        _warn_of(doubtful, result)
    uncounted = {name for name in result if LORA.search(name)}
    return in_network(result, any(map(_normalises, model.modules())), uncounted)


def roles_of_tensors(model: nn.Module) -> dict[Tensor, Role]:
    """Return the roles of the parameters of a model, by tensor."""
    found = roles_of(model)
    return {p: found[name] for name, p in _unwrapped(model).named_parameters()}


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside ``torch.compile`` and ``DistributedDataParallel``."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if inner is None:
            return model
        model = inner


def _places(model: nn.Module) -> Iterator[_Place]:
    """Yield every parameter at every layer that uses it."""
    names = {id(p): name for name, p in model.named_parameters()}
    for path, layer in model.named_modules():
        if isinstance(layer, parametrize.ParametrizationList):
            continue
        for attribute, p in layer.named_parameters(recurse=False):
            bare, _, suffix = attribute.rpartition("_")
            if suffix not in _DERIVED or not hasattr(layer, bare):
                bare = attribute
            scale = bare != attribute and suffix == "g"
            yield _Place(path, layer, bare, names[id(p)], p, scale)
        derived: Any = layer.parametrizations if parametrize.is_parametrized(layer) else {}
        for attribute, originals in derived.items():
            sizes = [p.numel() for p in originals.parameters(recurse=False)]
            for p in originals.parameters(recurse=False):
                scale = p.numel() < max(sizes)
                yield _Place(path, layer, attribute, names[id(p)], p, scale)


def _found_at(place: _Place, flow: DataFlow | None) -> _Found:
    """Return the role of a parameter at a layer."""
    shape = tuple(place.tensor.shape)
    layer = place.layer
    if len(shape) <= 1 or place.is_scale or _normalises(layer) or isinstance(layer, nn.PReLU):
        return _Found(Role("vector"))
    if LORA.search(place.name):
        looked_up = "embedding_a" in place.name.lower()
        return _Found(Role("embedding") if looked_up else Role("hidden", 1, shape[-1]))
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return _Found(Role("embedding"))
    if isinstance(layer, nn.modules.conv._ConvNd):
        return _Found(_convolution(layer, shape))
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        gates = _GATES.get(getattr(layer, "mode", type(layer).__name__), 1)
        return _Found(Role("hidden", 1 if "_hr" in place.attribute else gates, shape[1]))
    if isinstance(layer, nn.MultiheadAttention):
        if is_one_vector(shape):  # an additional key or value
            return _Found(Role("vector"))
        parts = 3 if place.attribute == "in_proj_weight" else 1
        return _Found(Role("hidden", parts, shape[1]))
    if isinstance(layer, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return _Found(Role("hidden", 1, shape[1]))  # the last layer of an attention
    swapped = type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")
    if len(shape) == 2 and (isinstance(layer, nn.Linear) or swapped):
        role = matrix_role(place.path, shape, swapped)
        return _Found(role, plain=role.parts == 1)
    return _of_own_layer(place, shape, flow)


def _convolution(layer: Any, shape: Shape) -> Role:
    """Return the role of a convolution."""
    if not layer.transposed:
        return Role("conv", layer.groups, math.prod(shape[1:]))
    # Every output sums over the inputs that a window of one stride covers.
    covered = math.prod(layer.kernel_size) / math.prod(layer.stride)
    return Role("conv", layer.groups, max(1, round(shape[0] // layer.groups * covered)))


def _of_own_layer(place: _Place, shape: Shape, flow: DataFlow | None) -> _Found:
    """Return the role of a parameter of a layer that is not one of torch's."""
    if is_one_vector(shape):
        return _Found(Role("vector"))
    if shape[0] == 1 and len(shape) > 2:  # added to all samples of a batch
        return _Found(Role("embedding"))
    if "conv" in type(place.layer).__name__.lower() and len(shape) > 2:
        return _Found(Role("conv", 1, math.prod(shape[1:])))
    if len(shape) > 2:
        if has_window(shape):
            return _Found(Role("conv", 1, math.prod(shape[1:])), sure=False)
        return _Found(stack_role(shape))
    right = flow is not None and place.name in flow.right
    left = flow is not None and place.name in flow.left
    if right or left:
        return _Found(matrix_role(place.name, shape, swapped=right), plain=True)
    if LOOKED_UP.search(place.name):
        return _Found(Role("embedding"))
    square = shape[0] == shape[1]
    return _Found(matrix_role(place.name, shape), plain=True, sure=square)


def _guessed_outputs(
    model: nn.Module, plain: list[str], places: dict[str, _Place], found: dict[str, Role]
) -> tuple[set[str], bool]:
    """Return the output layers of a model without a graph, and whether they are sure.

    Args:
        model: Model.
        plain: Matrices that may be outputs, in their order.
        places: Layer of every parameter.
        found: Roles of all parameters.
    """
    outputs = ends_of_heads(plain)
    if outputs or not plain:
        return outputs, True
    last = plain[-1]
    rows = places[last].tensor.shape[0]
    widths = {
        places[name].tensor.shape[-1] for name, role in found.items() if role.kind == "embedding"
    }
    if rows in widths and _in_repeated_block(model, last):
        return set(), True  # the output is an embedding
    # A tied output has no name of its own.
    return {last}, not widths


def _in_repeated_block(model: nn.Module, name: str) -> bool:
    """Return whether a parameter is inside one of several blocks of the same class."""
    path = name.split(".")
    for depth, part in enumerate(path[:-2]):
        parent = model.get_submodule(".".join(path[:depth]))
        blocks = dict(parent.named_children())
        if part.isdigit() and len(blocks) > 1 and len(set(map(type, blocks.values()))) == 1:
            return True
    return False


def _normalises(layer: nn.Module) -> bool:
    """Return whether a layer is a normalisation layer of torch, or of a class called a norm."""
    if isinstance(layer, _NORMALISING):
        return True
    cls = type(layer)  # torch.nn.utils has classes of weight normalisation
    return cls.__name__.lower().endswith("norm") and not cls.__module__.startswith("torch.nn.utils")


def _warn_of(names: list[str], found: dict[str, Role]) -> None:
    listed = ", ".join(
        f"{name} (taken as {found[name].kind} with {found[name].fan_in} inputs)" for name in names
    )
    warn_user(
        f"the roles of these parameters are uncertain: {listed}. If one is wrong, correct it with "
        f"roles={{name: md.mirrors.Role(kind, fan_in=…)}}",
    )
