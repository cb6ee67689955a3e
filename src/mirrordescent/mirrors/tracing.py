"""What the axes of a network's parameters are indexed by, read off its graph of operations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, fx, nn


class Factor(NamedTuple):
    """``size`` indices: of hidden units that ``group`` permutes, or (None) of what stays in its
    order.
    """

    size: int
    group: int | None = None


Axis: TypeAlias = tuple[Factor, ...]
"""The factors of an axis, outermost first: one, or channels × positions where an image was
flattened.
"""


def trace(
    model: nn.Module, example: Tensor | None = None
) -> tuple[dict[str, tuple[Axis, ...]], tuple[str, ...]]:
    """Return the axes of every parameter and buffer by name, and the operations that were not
    understood.

    Hidden units are followed from the layer that makes them to those that take them in. Whatever is
    not known to treat all of them alike keeps them in their order: the input, the output, frozen
    parameters, unknown operations. Without an example, dense layers are taken to work on (batch,
    features).
    """
    reader = _Reader(model)
    try:
        root, graph = _traced(model)
    except Exception as error:  # the code of any model runs here, and may fail in any way
        reader.not_understood.append(
            f"{type(model).__name__}, which torch.fx cannot trace ({error})"
        )
        return reader.axes(), tuple(reader.not_understood)
    if example is not None:
        with torch.no_grad():
            _Shapes(root, graph=graph).run(example)
    for node in graph.nodes:
        reader.read(node, root)
    return reader.axes(), tuple(reader.not_understood)


def _traced(model: nn.Module) -> tuple[nn.Module, fx.Graph]:
    """Return a copy of a model with its graph. Tracing leaves constants behind, and must draw
    nothing at random.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    root = copy.deepcopy(model, shared).eval()
    tracer = fx.Tracer()
    if tracer.is_leaf_module(root, ""):
        root = nn.Sequential(root)  # a single layer is a model too
    return root, tracer.trace(root)


class _Shapes(fx.Interpreter):
    """Runs a graph, and notes the shapes of all activations in it."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["shape"] = tuple(result.shape) if isinstance(result, Tensor) else None
        return result


class _Units:
    """A set of indices, merged with those that must be permuted together."""

    def __init__(self, size: int | None, *, fixed: bool = False) -> None:
        self.size = size  # None: the positions of an image, until they meet a parameter
        self.fixed = fixed
        self._parent: _Units | None = None

    def root(self) -> _Units:
        return self if self._parent is None else self._parent.root()

    def merge(self, other: _Units) -> None:
        mine = self.root()
        theirs = other.root()
        if mine is not theirs:
            theirs.fixed = theirs.fixed or mine.fixed
            mine._parent = theirs


_Axis: TypeAlias = tuple[_Units, ...]


class _Stream(NamedTuple):
    """An activation whose axis ``dim`` < 0 is indexed by hidden units, and the others by samples
    and positions.
    """

    axis: _Axis
    dim: int
    ndim: int


class _NotUnderstood(Exception):
    """An operation for which there is no rule."""


def _require(understood: bool) -> None:
    if not understood:
        raise _NotUnderstood


class _Call(NamedTuple):
    """An operation: its node, its module if it has one, the activations and the parameters or
    constants it takes in.

    An activation without hidden units, such as the input, is None.
    """

    node: fx.Node
    module: Any
    incoming: list[_Stream | None]
    attributes: list[Tensor]

    @property
    def streams(self) -> list[_Stream]:
        return [stream for stream in self.incoming if stream]

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of what it takes in first, if known."""
        return self.node.all_input_nodes[0].meta.get("shape")

    def only(self) -> _Stream | None:
        """Return the one activation that comes in."""
        _require(len(self.incoming) == 1)
        return self.incoming[0]

    def arguments(self, **defaults: Any) -> list[Any]:
        """Return attributes of the module, or arguments after the first, in the order of the
        defaults.
        """
        if self.module is not None:
            return [getattr(self.module, name) for name in defaults]
        given = dict(zip(defaults, self.node.args[1:], strict=False)) | self.node.kwargs
        return [given.get(name, default) for name, default in defaults.items()]


class _Reader:
    """Goes through the operations of a model, and keeps what is known of every activation and every
    tensor.
    """

    def __init__(self, model: nn.Module) -> None:
        self.not_understood: list[str] = []
        self.streams: dict[fx.Node, _Stream | None] = {}
        self.tensors: dict[str, Tensor] = dict(model.named_parameters()) | dict(
            model.named_buffers()
        )
        self.names = {id(tensor): name for name, tensor in self.tensors.items()}
        self.bound: dict[str, tuple[_Axis, ...]] = {}

    def axes(self) -> dict[str, tuple[Axis, ...]]:
        """Number the groups, and return the axes of all tensors."""
        for name, tensor in self.tensors.items():
            if name not in self.bound:
                self.bound[name] = tuple(map(_fixed, tensor.shape))
            elif isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
                _fix(self.bound[name])
        groups: dict[_Units, int] = {}

        def factor(units: _Units) -> Factor:
            root = units.root()
            return Factor(
                units.size or 0, None if root.fixed else groups.setdefault(root, len(groups))
            )

        return {
            name: tuple(tuple(map(factor, axis)) for axis in self.bound[name])
            for name in self.tensors
        }

    def read(self, node: fx.Node, root: nn.Module) -> None:
        """Follow the hidden units through one operation."""
        module = root.get_submodule(str(node.target)) if node.op == "call_module" else None
        incoming = [
            self.streams[argument] for argument in node.all_input_nodes if not _is_number(argument)
        ]
        paths = [
            str(argument.target).rpartition(".")
            for argument in node.all_input_nodes
            if argument.op == "get_attr"
        ]
        attributes = [getattr(root.get_submodule(owner), name) for owner, _, name in paths]
        call = _Call(node, module, incoming, attributes)
        try:
            self.streams[node] = self._understand(call)
        except _NotUnderstood:
            self.streams[node] = None
            self._give_up(call)

    def _understand(self, call: _Call) -> _Stream | None:
        if call.node.op in ("placeholder", "get_attr") or _is_number(call.node):
            return None
        if call.node.op == "output":
            _fix(stream.axis for stream in call.streams)
            return None
        name = _function(call.node) if call.module is None else type(call.module).__name__
        key = name.replace("_", "").lower()
        known = call.module is None or type(call.module) is getattr(nn, name, None)
        _require(known and key in _RULES)
        return _RULES[key](self, call)

    def _give_up(self, call: _Call) -> None:
        """Let everything that an operation touches keep its order."""
        what = _function(call.node)
        tensors = call.attributes
        if call.module is not None:
            what = f"{what} ({type(call.module).__name__})"
            tensors = [*tensors, *call.module.parameters(), *call.module.buffers()]
        _fix(stream.axis for stream in call.streams)
        names = [self.names[id(tensor)] for tensor in tensors if id(tensor) in self.names]
        for name in names:
            _fix(self.bound.get(name, ()))
        if call.streams or names:
            self.not_understood.append(what)

    def _bind(self, tensor: Tensor | None, *axes: _Axis) -> None:
        """State the axes of a parameter or buffer; those of one that is used twice are tied."""
        if tensor is not None:
            _require(
                id(tensor) in self.names
            )  # not so if it is computed from others, as by weight normalisation
            for old, new in zip(
                self.bound.setdefault(self.names[id(tensor)], axes), axes, strict=True
            ):
                _tie(old, new)

    def layer(self, call: _Call) -> _Stream:
        """Dense and convolutional layers make new units out of those at their channel axis."""
        _require(call.module is not None and getattr(call.module, "groups", 1) == 1)
        stream = call.only()
        weight = call.module.weight
        window = call.module.weight.shape[2:]
        dim = -1 - len(window)
        _require(stream is None or stream.dim == dim)
        before = self.bound.get(self.names.get(id(weight), ""))
        out = before[0] if before else (_Units(weight.shape[0]),)
        self._bind(weight, out, _taken_in(stream, weight.shape[1]), *map(_fixed, window))
        self._bind(call.module.bias, out)
        ndim = stream.ndim if stream else 1 - dim
        return _Stream(out, dim, ndim if call.shape is None else len(call.shape))

    def norm(self, call: _Call) -> _Stream | None:
        """Normalisation treats units alike, with a scale, a shift and running statistics
        for each.
        """
        stream = call.only()
        module = call.module
        layer = isinstance(module, nn.LayerNorm)
        _require(module is not None and not (layer and len(module.normalized_shape) > 1))
        _require(stream is None or (stream.dim == -1 if layer else stream.ndim + stream.dim == 1))
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and tensor.ndim == 1:
                self._bind(tensor, _taken_in(stream, len(tensor)))
        return stream

    def elementwise(self, call: _Call) -> _Stream | None:
        """Functions of entries, and of corresponding entries of several activations, whose units
        are tied.
        """
        streams = call.streams
        attributes = call.attributes
        _require(
            len({stream.dim for stream in streams}) < 2
            and all(tensor.numel() == 1 for tensor in attributes)
        )
        if not streams or len(streams) + len(attributes) < len(
            call.incoming
        ):  # such as the input added to a layer
            _fix(stream.axis for stream in streams)
            return None
        for other in streams[1:]:
            _tie(streams[0].axis, other.axis)
        return max(streams, key=lambda stream: stream.ndim)

    def pooling(self, call: _Call, *, dims: int) -> _Stream | None:
        """Pooling over the last dimensions, which must be positions."""
        stream = call.only()
        _require(stream is None or stream.dim < -dims)
        return stream

    def reduction(self, call: _Call) -> _Stream | None:
        """Means and the like over dimensions other than that of the units."""
        stream = call.only()
        (dims, keep) = call.arguments(dim=None, keepdim=False)
        if stream is None:
            return None
        _require(dims is not None)
        dims = [
            dim if dim < 0 else dim - stream.ndim
            for dim in ([dims] if isinstance(dims, int) else dims)
        ]
        _require(stream.dim not in dims)
        if keep:
            return stream
        return stream._replace(
            dim=stream.dim + sum(dim > stream.dim for dim in dims), ndim=stream.ndim - len(dims)
        )

    def flatten(self, call: _Call, *bounds: int) -> _Stream | None:
        """Flattening the units' axis with others makes one of units times positions."""
        stream = call.only()
        (start, end) = bounds or call.arguments(start_dim=0, end_dim=-1)
        if stream is None:
            return None
        start = start % stream.ndim
        end = end % stream.ndim
        at = stream.dim % stream.ndim
        _require(start > 0 or end == 0)  # the samples are not positions
        ndim = stream.ndim - (end - start)
        if not start <= at <= end:
            return stream._replace(dim=(at if at < start else at - (end - start)) - ndim, ndim=ndim)
        shape = call.shape or [None] * stream.ndim
        axis = (*_positions(shape[start:at]), *stream.axis, *_positions(shape[at + 1 : end + 1]))
        return _Stream(axis, start - ndim, ndim)

    def reshape(self, call: _Call) -> _Stream | None:
        """Those reshapings that flatten all but the samples, such as x.view(x.size(0), -1)."""
        before = call.shape
        after = call.node.meta.get("shape")
        sizes = call.node.args[1:]
        if before is not None and after is not None:
            understood = tuple(after) == (before[0], prod(before[1:]))
        else:
            sizes = tuple(sizes[0]) if sizes and isinstance(sizes[0], tuple | list) else sizes
            understood = len(sizes) == 2 and _is_batch_size(sizes[0]) and sizes[1:] == (-1,)
        _require(call.only() is None or understood)
        return self.flatten(call, 1, -1)


def _fixed(size: int | None) -> _Axis:
    return (_Units(size, fixed=True),)


def _fix(axes: Iterable[_Axis]) -> None:
    for axis in axes:
        for units in axis:
            units.root().fixed = True


def _tie(first: _Axis, second: _Axis) -> None:
    if [units.size for units in first] != [units.size for units in second]:
        _fix((first, second))
        raise _NotUnderstood
    for one, other in zip(first, second, strict=True):
        one.merge(other)


def _taken_in(stream: _Stream | None, size: int) -> _Axis:
    """Return the units of an axis of known size, which tells how many positions there are
    along it.
    """
    if stream is None:
        return _fixed(size)
    unknown = [units for units in stream.axis if units.size is None]
    known = prod(units.size for units in stream.axis if units.size is not None)
    if len(unknown) == 1 and size % known == 0:
        unknown[0].size = size // known
    else:
        _require(not unknown and known == size)
    return stream.axis


def _positions(sizes: Iterable[int | None]) -> _Axis:
    """Return the indices of several axes of positions as one."""
    sizes = list(sizes)
    if all(size == 1 for size in sizes):
        return ()
    return _fixed(None if None in sizes else prod(size for size in sizes if size is not None))


def _function(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls, if it is one of torch's or
    Python's.
    """
    if isinstance(node.target, str):
        return node.target.removesuffix("_")
    module = getattr(node.target, "__module__", None) or ""
    name: str = getattr(node.target, "__name__", str(node.target))
    return (
        name
        if module.partition(".")[0] in ("torch", "_operator", "math", "builtins")
        else f"{module}.{name}"
    )


def _is_number(node: fx.Node) -> bool:
    """Tell whether a node is made of sizes, and not of activations."""
    name = _function(node)
    if node.op == "call_method" and name in ("size", "dim", "numel"):
        return True
    if node.op == "call_function" and name == "getattr":
        return node.args[1] in ("shape", "ndim")
    plain = node.op == "call_function" and getattr(node.target, "__module__", "") in (
        "_operator",
        "math",
        "builtins",
    )
    return plain and bool(node.all_input_nodes) and all(map(_is_number, node.all_input_nodes))


def _is_batch_size(size: Any) -> bool:
    """Recognise x.size(0) and x.shape[0]."""
    known = (
        isinstance(size, fx.Node) and _is_number(size) and _function(size) in ("size", "getitem")
    )
    return known and size.args[1:] == (0,)


_Rule: TypeAlias = Callable[[_Reader, _Call], _Stream | None]
_RULES: dict[
    str, _Rule
] = {  # of functions, methods and modules of PyTorch, by name without underscores and capitals
    name: rule
    for names, rule in (
        ("linear conv1d conv2d conv3d", _Reader.layer),
        ("batchnorm1d batchnorm2d batchnorm3d syncbatchnorm layernorm", _Reader.norm),
        ("instancenorm1d instancenorm2d instancenorm3d", _Reader.norm),
        (
            "identity relu relu6 leakyrelu gelu silu mish elu selu celu softplus softsign sigmoid",
            _Reader.elementwise,
        ),
        (
            "hardsigmoid hardswish hardtanh logsigmoid tanh tanhshrink softmax logsoftmax",
            _Reader.elementwise,
        ),
        (
            "dropout dropout1d dropout2d dropout3d alphadropout contiguous clone detach",
            _Reader.elementwise,
        ),
        (
            "add iadd sub isub mul imul div truediv itruediv pow neg abs square sqrt exp log",
            _Reader.elementwise,
        ),
        ("sin cos clamp maximum minimum float double half", _Reader.elementwise),
        ("mean sum amax amin", _Reader.reduction),
        ("view reshape", _Reader.reshape),
        ("flatten", _Reader.flatten),
        (
            "maxpool1d avgpool1d adaptivemaxpool1d adaptiveavgpool1d",
            partial(_Reader.pooling, dims=1),
        ),
        (
            "maxpool2d avgpool2d adaptivemaxpool2d adaptiveavgpool2d",
            partial(_Reader.pooling, dims=2),
        ),
        (
            "maxpool3d avgpool3d adaptivemaxpool3d adaptiveavgpool3d",
            partial(_Reader.pooling, dims=3),
        ),
    )
    for name in names.split()
}
