"""Roles of the tensors of a network: input, hidden, output, convolution, embedding or vector.

A geometry that depends on roles, not on names, can be used on networks that it was not learned on.
The layers of a model determine the roles (:func:`~mirrordescent.mirrors.roles_of`). Names and
shapes are a fallback if there is no model. Two rules read them:

- :func:`roles` is the rule that stored geometries were published with. It does not change, so that
  a version of an entry takes the same steps in every release.
- :func:`roles_by_name` knows more names: adapters, weight normalisation, stacks of matrices,
  tokens, heads. :class:`mirrordescent.optim.SpectralDescent` uses it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Set
from typing import Literal, NamedTuple, TypeAlias

from mirrordescent.mirrors.singular_values import MatrixLayout

LayerKind: TypeAlias = Literal["input", "hidden", "output", "conv", "embedding", "vector"]
Shape: TypeAlias = tuple[int, ...]

_EMBEDDING = re.compile(r"emb|wte|wpe|(^|[._])pos($|[._])", re.IGNORECASE)
_GAIN = re.compile(r"(^|[._])(weight|gain|gamma|scale)$")  # a vector of a normalisation layer
_RECURRENT = re.compile(r"(.*)weight_(ih|hh)(_l\d+.*)?$")
LORA = re.compile(r"(^|[._])lora_", re.IGNORECASE)
"""Names of low-rank adapters."""

LOOKED_UP = re.compile(
    r"emb|wte|wpe|(^|[._])(pos|users?|items?|movies?|products?|entities|relations?|tokens?|vocab|"
    r"codebook|prompts?|latents?|quer(y|ies)_tokens?)($|[._])|_tokens?$",
    re.IGNORECASE,
)
"""Names of tensors whose rows are looked up, or added to activations."""

HEAD = re.compile(
    r"(^|[._])([a-z]+_)?(head|heads|classifier|logits|policy|actor|critic|score|qa_outputs|readout)"
    r"([._]|$)",
    re.IGNORECASE,
)
"""Names of modules that end with an output layer."""

FUSED = re.compile(
    r"(^|[._])(qkv|wqkv|to_qkv|qkv_proj|query_key_value|c_attn|in_proj)([._]|$)", re.I
)
"""Names of layers that compute queries, keys and values at once."""

_WINDOW = 11  # largest side of the window of a convolution whose layer is unknown


class Role(NamedTuple):
    """The role of a tensor in a network.

    Args:
        kind: Kind of the layer.
        parts: Number of blocks of rows that are matrices of their own.
        fan_in: Number of inputs of every output.
        depth: Number of matrices and convolutions in the network, without embeddings.
        normed: Whether the network has normalisation layers.
        row_axes: Number of leading axes that are rows, such as 2 for a stack (experts, in, out),
            which has as many parts as experts.
        transposed: Whether ``parts`` divides the columns of a matrix instead of its rows.
    """

    kind: LayerKind
    parts: int = 1
    fan_in: int = 1
    depth: int = 1
    normed: bool = False
    row_axes: int = 1
    transposed: bool = False

    @property
    def layout(self) -> MatrixLayout:
        """How the tensor is read as matrices."""
        return MatrixLayout(self.parts, self.row_axes, self.transposed)


def roles(shapes: Mapping[str, Shape]) -> dict[str, Role]:
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
    Role(kind='hidden', parts=1, fan_in=50, depth=3, normed=False, row_axes=1, transposed=False)
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
    return in_network(result, _has_gains(shapes))


def roles_by_name(shapes: Mapping[str, Shape]) -> dict[str, Role]:
    """Return the roles of tensors by their names and shapes, for models that are not at hand.

    It differs from :func:`roles` in these names:

    - ``lora_A`` and ``lora_B`` are hidden and not counted as layers. The scale of a weight
      normalisation is a vector, and its direction has the role of the weight.
    - Tensors with at most one axis longer than 1 are vectors (``cls_token``). Tensors with the name
      of a token, an embedding or a table of users are embeddings (``pos_embed``, ``items.weight``).
    - Tensors with three or more axes are stacks of matrices (experts, in, out), unless their last
      axes have the size of the window of a convolution.
    - Every matrix that ends a module with the name of a head is an output.
    - If no matrix has such a name, the last one is the output. It is hidden if it has as many rows
      as an embedding has columns, which a network with a tied embedding ends with.
    - Matrices of ``qkv`` layers are divided into three parts. If ``c_fc`` reduces the width, these
      matrices are stored as (in, out), as Hugging Face's ``Conv1D`` does.

    Args:
        shapes: Shapes by name, in the order of the layers.

    >>> roles_by_name({"experts": (8, 64, 256)})["experts"].parts
    8
    """
    swapped = any(
        name.endswith("c_fc.weight") and len(shape) == 2 and shape[0] < shape[1]
        for name, shape in shapes.items()
    )
    result: dict[str, Role] = {}
    plain: list[str] = []
    for name, shape in shapes.items():
        role = _role_by_better_name(name, shape, shapes)
        if role is None:
            role = matrix_role(name, shape, swapped and "c_" in name)
            if role.parts == 1:
                plain.append(name)
        result[name] = role
    widths = {shapes[name][-1] for name, role in result.items() if role.kind == "embedding"}
    first = next((name for name, role in result.items() if role.kind != "vector"), None)
    outputs = ends_of_heads(plain)
    if not outputs and plain and shapes[plain[-1]][0] not in widths:
        outputs = {plain[-1]}
    for name in plain:
        if name in outputs:
            result[name] = result[name]._replace(kind="output")
        elif name == first:
            result[name] = result[name]._replace(kind="input")
    uncounted = {name for name in shapes if LORA.search(name)}
    return in_network(result, _has_gains(shapes), uncounted)


def ends_of_heads(names: list[str]) -> set[str]:
    """Return the last of the matrices of every module with the name of a head.

    Args:
        names: Names of matrices, in the order of the layers.
    """
    last: dict[str, str] = {}
    for name in names:
        match = HEAD.search(name.rpartition(".")[0])
        if match is not None and not FUSED.search(name):
            last[name[: match.end()]] = name
    return set(last.values())


def matrix_role(name: str, shape: Shape, swapped: bool = False) -> Role:
    """Return the role of a matrix inside a network.

    Args:
        name: Name of the parameter.
        shape: Its shape, (out, in).
        swapped: Whether it is (in, out).
    """
    out, fan_in = reversed(shape) if swapped else shape
    parts = 3 if FUSED.search(name) and out == 3 * fan_in else 1
    return Role("hidden", parts, fan_in, transposed=swapped and parts > 1)


def stack_role(shape: Shape) -> Role:
    """Return the role of a stack of matrices, (…, in, out)."""
    return Role("hidden", math.prod(shape[:-2]), shape[-2], row_axes=len(shape) - 1)


def has_window(shape: Shape) -> bool:
    """Return whether a tensor of unknown use has the shape of a convolution."""
    window = shape[2:]
    if not window or max(window) > _WINDOW:
        return False
    return len(set(window)) == 1 and (len(window) > 1 or window[0] % 2 == 1)


def is_one_vector(shape: Shape) -> bool:
    """Return whether at most one axis is longer than 1."""
    return sum(n != 1 for n in shape) <= 1


def _role_by_better_name(name: str, shape: Shape, shapes: Mapping[str, Shape]) -> Role | None:
    """Return the role of a tensor in :func:`roles_by_name`, or None for a plain matrix."""
    attribute = name.rpartition(".")[2]
    if len(shape) <= 1 or attribute == "weight_g":
        return Role("vector")
    if attribute == "original0" and name.removesuffix("0") + "1" in shapes:
        return Role("vector")
    if is_one_vector(shape) and not attribute.startswith(("weight", "original")):
        return Role("vector")
    if LORA.search(name):
        return Role("embedding") if "embedding_a" in name.lower() else matrix_role("", shape[-2:])
    if LOOKED_UP.search(name):
        return Role("embedding")
    if len(shape) == 2:
        return _role_by_name(name, shape, shapes)
    if has_window(shape):
        return Role("conv", 1, math.prod(shape[1:]))
    return stack_role(shape)


def _has_gains(shapes: Mapping[str, Shape]) -> bool:
    """Return whether a network has vectors with the names of gains of normalisation layers."""
    return any(
        len(shape) == 1 and shape != (1,) and _GAIN.search(name) for name, shape in shapes.items()
    )


def in_network(
    found: dict[str, Role], normed: bool, uncounted: Set[str] = frozenset()
) -> dict[str, Role]:
    """Return roles with the depth of the network, and whether it has normalisation layers.

    Args:
        found: Roles by name.
        normed: Whether there are normalisation layers.
        uncounted: Tensors that are not layers of their own.
    """
    layers = [
        name
        for name, role in found.items()
        if role.kind not in ("vector", "embedding") and name not in uncounted
    ]
    depth = max(1, len(layers))
    return {name: role._replace(depth=depth, normed=normed) for name, role in found.items()}


def _role_by_name(name: str, shape: Shape, shapes: Mapping[str, Shape]) -> Role | None:
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
