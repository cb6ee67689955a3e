"""The index sets of the axes of a network's parameters, derived from its graph of operations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, fx, nn


class Factor(NamedTuple):
    """An index set: its size, and the group that permutes it; None if its order is fixed."""

    size: int
    group: int | None = None


Axis: TypeAlias = tuple[Factor, ...]
"""The factors of an axis, outermost first: one, or channels × positions of a flattened image."""


def trace(
    model: nn.Module, example: Tensor | None = None
) -> tuple[dict[str, tuple[Axis, ...]], tuple[str, ...]]:
    """Return the axes of every parameter and buffer by name, and the unsupported operations.

    Hidden units are followed from the layer that produces them to the layers that use them. The
    order of units is fixed by everything that does not treat them alike: the input, the output,
    frozen parameters and unsupported operations.

    Args:
        model: Network.
        example: Input of the network. Without it, dense layers are assumed to act on
            (batch, features).
    """
    reader = _Reader(model)
    try:
        root, graph = _traced(model)
    except Exception as error:  # tracing runs the code of the model, which may raise anything
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
    """Return a copy of a model, and its graph.

    Tracing adds constants to the model, hence the copy. It is in evaluation mode, so that tracing
    draws no random numbers.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    root = copy.deepcopy(model, shared).eval()
    tracer = fx.Tracer()
    if tracer.is_leaf_module(root, ""):
        root = nn.Sequential(root)  # a single layer
    return root, tracer.trace(root)


class _Shapes(fx.Interpreter):
    """An interpreter that stores the shapes of all activations of a graph."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["shape"] = tuple(result.shape) if isinstance(result, Tensor) else None
        return result


class _Units:
    """An index set in a union-find structure of sets that must be permuted together."""

    def __init__(self, size: int | None, *, fixed: bool = False) -> None:
        self.size = size  # None for positions of an image, until a parameter determines it
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
    """An activation: its axis ``dim`` < 0 is indexed by hidden units, the others by positions."""

    axis: _Axis
    dim: int
    ndim: int


class _Unsupported(Exception):
    """An operation for which there is no rule."""


def _require(supported: bool) -> None:
    if not supported:
        raise _Unsupported


class _Call(NamedTuple):
    """An operation of the graph."""

    node: fx.Node
    """Node of the graph."""

    module: Any
    """Module that the node calls; None for functions and methods."""

    incoming: list[_Stream | None]
    """Input activations; None for those without hidden units, such as the input."""

    attributes: list[Tensor]
    """Parameters and constants among the arguments."""

    @property
    def streams(self) -> list[_Stream]:
        """The input activations with hidden units."""
        return [stream for stream in self.incoming if stream]

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the first input, if known."""
        return self.node.all_input_nodes[0].meta.get("shape")

    def only(self) -> _Stream | None:
        """Return the input activation of an operation with a single input."""
        _require(len(self.incoming) == 1)
        return self.incoming[0]

    def arguments(self, **defaults: Any) -> list[Any]:
        """Return attributes of the module, or arguments after the first, by name and default."""
        if self.module is not None:
            return [getattr(self.module, name) for name in defaults]
        given = dict(zip(defaults, self.node.args[1:], strict=False)) | self.node.kwargs
        return [given.get(name, default) for name, default in defaults.items()]


class _Reader:
    """The state of the analysis: the streams of all activations and the axes of all tensors."""

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
            group = None if root.fixed else groups.setdefault(root, len(groups))
            return Factor(units.size or 0, group)

        axes = {}
        for name in self.tensors:
            axes[name] = tuple(tuple(map(factor, axis)) for axis in self.bound[name])
        return axes

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
            self.streams[node] = self._apply_rule(call)
        except _Unsupported:
            self.streams[node] = None
            self._fix_everything(call)

    def _apply_rule(self, call: _Call) -> _Stream | None:
        """Return the output activation of an operation."""
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

    def _fix_everything(self, call: _Call) -> None:
        """Fix the order of all units that an unsupported operation uses."""
        description = _function(call.node)
        tensors = call.attributes
        if call.module is not None:
            description = f"{description} ({type(call.module).__name__})"
            tensors = [*tensors, *call.module.parameters(), *call.module.buffers()]
        _fix(stream.axis for stream in call.streams)
        names = [self.names[id(tensor)] for tensor in tensors if id(tensor) in self.names]
        for name in names:
            _fix(self.bound.get(name, ()))
        if call.streams or names:
            self.not_understood.append(description)

    def _bind(self, tensor: Tensor | None, *axes: _Axis) -> None:
        """Set the axes of a parameter or buffer; if it is used twice, tie the axes."""
        if tensor is None:
            return
        # A tensor without a name is computed from others, as by weight normalisation.
        _require(id(tensor) in self.names)
        bound = self.bound.setdefault(self.names[id(tensor)], axes)
        for old, new in zip(bound, axes, strict=True):
            _tie(old, new)

    def layer(self, call: _Call) -> _Stream:
        """Apply the rule of dense and convolutional layers, which produce new units."""
        _require(call.module is not None and getattr(call.module, "groups", 1) == 1)
        stream = call.only()
        weight = call.module.weight
        window = call.module.weight.shape[2:]
        dim = -1 - len(window)
        _require(stream is None or stream.dim == dim)
        before = self.bound.get(self.names.get(id(weight), ""))
        out = before[0] if before else (_Units(weight.shape[0]),)
        self._bind(weight, out, _input_axis(stream, weight.shape[1]), *map(_fixed, window))
        self._bind(call.module.bias, out)
        ndim = stream.ndim if stream else 1 - dim
        return _Stream(out, dim, ndim if call.shape is None else len(call.shape))

    def norm(self, call: _Call) -> _Stream | None:
        """Apply the rule of normalisation: units have a scale, a shift and running statistics."""
        stream = call.only()
        module = call.module
        layer = isinstance(module, nn.LayerNorm)
        _require(module is not None and not (layer and len(module.normalized_shape) > 1))
        _require(stream is None or (stream.dim == -1 if layer else stream.ndim + stream.dim == 1))
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and tensor.ndim == 1:
                self._bind(tensor, _input_axis(stream, len(tensor)))
        return stream

    def elementwise(self, call: _Call) -> _Stream | None:
        """Apply the rule of elementwise functions, which tie the units of all their inputs."""
        streams = call.streams
        attributes = call.attributes
        same_dim = len({stream.dim for stream in streams}) < 2
        _require(same_dim and all(tensor.numel() == 1 for tensor in attributes))
        without_units = len(call.incoming) - len(streams) - len(attributes)
        if not streams or without_units > 0:  # such as the input added to a layer
            _fix(stream.axis for stream in streams)
            return None
        for other in streams[1:]:
            _tie(streams[0].axis, other.axis)
        return max(streams, key=lambda stream: stream.ndim)

    def pooling(self, call: _Call, *, dims: int) -> _Stream | None:
        """Apply the rule of pooling over the last dimensions, which must be positions."""
        stream = call.only()
        _require(stream is None or stream.dim < -dims)
        return stream

    def reduction(self, call: _Call) -> _Stream | None:
        """Apply the rule of means and sums over dimensions other than that of the units."""
        stream = call.only()
        (dims, keep) = call.arguments(dim=None, keepdim=False)
        if stream is None:
            return None
        _require(dims is not None)
        dims = [dims] if isinstance(dims, int) else dims
        dims = [dim if dim < 0 else dim - stream.ndim for dim in dims]
        _require(stream.dim not in dims)
        if keep:
            return stream
        removed_after = sum(dim > stream.dim for dim in dims)
        return stream._replace(dim=stream.dim + removed_after, ndim=stream.ndim - len(dims))

    def flatten(self, call: _Call, *bounds: int) -> _Stream | None:
        """Apply the rule of flattening, which makes one axis of units × positions."""
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
            new_place = at if at < start else at - (end - start)
            return stream._replace(dim=new_place - ndim, ndim=ndim)
        shape = call.shape or [None] * stream.ndim
        axis = (*_positions(shape[start:at]), *stream.axis, *_positions(shape[at + 1 : end + 1]))
        return _Stream(axis, start - ndim, ndim)

    def reshape(self, call: _Call) -> _Stream | None:
        """Apply the rule of reshapes that flatten each sample, such as x.view(x.size(0), -1)."""
        before = call.shape
        after = call.node.meta.get("shape")
        sizes = call.node.args[1:]
        if before is not None and after is not None:
            flattens = tuple(after) == (before[0], prod(before[1:]))
        else:
            if sizes and isinstance(sizes[0], tuple | list):
                sizes = tuple(sizes[0])
            flattens = len(sizes) == 2 and _is_batch_size(sizes[0]) and sizes[1:] == (-1,)
        _require(call.only() is None or flattens)
        return self.flatten(call, 1, -1)


def _fixed(size: int | None) -> _Axis:
    return (_Units(size, fixed=True),)


def _fix(axes: Iterable[_Axis]) -> None:
    for axis in axes:
        for units in axis:
            units.root().fixed = True


def _tie(first: _Axis, second: _Axis) -> None:
    """Let one group permute both axes."""
    if [units.size for units in first] != [units.size for units in second]:
        _fix((first, second))
        raise _Unsupported
    for one, other in zip(first, second, strict=True):
        one.merge(other)


def _input_axis(stream: _Stream | None, size: int) -> _Axis:
    """Return the axis of a stream; the size of the parameter determines the number of positions."""
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
    """Return several axes of positions as one axis."""
    sizes = list(sizes)
    if all(size == 1 for size in sizes):
        return ()
    return _fixed(None if None in sizes else prod(size for size in sizes if size is not None))


def _function(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls.

    Functions outside of torch and Python are named with their module.
    """
    if isinstance(node.target, str):
        return node.target.removesuffix("_")
    module = getattr(node.target, "__module__", None) or ""
    name: str = getattr(node.target, "__name__", str(node.target))
    known = module.partition(".")[0] in ("torch", "_operator", "math", "builtins")
    return name if known else f"{module}.{name}"


def _is_number(node: fx.Node) -> bool:
    """Tell whether a node is computed from sizes, not from activations."""
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
    """Tell whether a size is x.size(0) or x.shape[0]."""
    if not isinstance(size, fx.Node) or not _is_number(size):
        return False
    return _function(size) in ("size", "getitem") and size.args[1:] == (0,)


_Rule: TypeAlias = Callable[[_Reader, _Call], _Stream | None]

# Functions, methods and modules of PyTorch, without underscores and capitals, and their rules.
_NAMES_AND_RULES: tuple[tuple[str, _Rule], ...] = (
    ("linear conv1d conv2d conv3d", _Reader.layer),
    ("batchnorm1d batchnorm2d batchnorm3d syncbatchnorm layernorm", _Reader.norm),
    ("instancenorm1d instancenorm2d instancenorm3d", _Reader.norm),
    ("identity relu relu6 leakyrelu gelu silu mish elu selu celu", _Reader.elementwise),
    ("softplus softsign sigmoid hardsigmoid hardswish hardtanh", _Reader.elementwise),
    ("logsigmoid tanh tanhshrink softmax logsoftmax", _Reader.elementwise),
    ("dropout dropout1d dropout2d dropout3d alphadropout", _Reader.elementwise),
    ("contiguous clone detach float double half", _Reader.elementwise),
    ("add iadd sub isub mul imul div truediv itruediv pow neg", _Reader.elementwise),
    ("abs square sqrt exp log sin cos clamp maximum minimum", _Reader.elementwise),
    ("mean sum amax amin", _Reader.reduction),
    ("view reshape", _Reader.reshape),
    ("flatten", _Reader.flatten),
    ("maxpool1d avgpool1d adaptivemaxpool1d adaptiveavgpool1d", partial(_Reader.pooling, dims=1)),
    ("maxpool2d avgpool2d adaptivemaxpool2d adaptiveavgpool2d", partial(_Reader.pooling, dims=2)),
    ("maxpool3d avgpool3d adaptivemaxpool3d adaptiveavgpool3d", partial(_Reader.pooling, dims=3)),
)
_RULES = {name: rule for names, rule in _NAMES_AND_RULES for name in names.split()}
