"""What the axes of a network's parameters are indexed by, read off its graph of operations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase


class Factor(NamedTuple):
    """``size`` indices: of hidden units that ``group`` permutes, or (None) of what stays in its order."""

    size: int
    group: int | None = None


Axis: TypeAlias = tuple[Factor, ...]
"""The factors of an axis, outermost first: one, or channels × positions where an image was flattened."""


def trace(model: nn.Module, example: Tensor | None = None) -> tuple[dict[str, tuple[Axis, ...]], tuple[str, ...]]:
    """Return the axes of every parameter and buffer by name, and the operations that were not understood.

    Hidden units are followed from the layer that makes them to those that take them in. Whatever is not known to
    treat all of them alike keeps them in their order: the input, the output, frozen parameters, unknown operations.
    Without an example, dense layers are taken to work on (batch, features).
    """
    try:
        twin = _copy(model)
        graph = _graph(twin)
    except Exception as error:  # the code of any model runs here, and may fail in any way
        reader = _Reader(model)
        reader.not_understood.append(f"{type(model).__name__}, which torch.fx cannot trace ({error})")
        return reader.axes(), tuple(reader.not_understood)
    if example is not None:
        with torch.no_grad():
            _Shapes(twin, graph=graph).run(example)
    reader = _Reader(twin)
    for node in graph.nodes:
        reader.read(node)
    return reader.axes(), tuple(reader.not_understood)


def _copy(model: nn.Module) -> nn.Module:
    """Copy all but the tensors: tracing leaves constants behind, and must draw nothing at random."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}).eval()


def _graph(model: nn.Module) -> fx.Graph:
    tracer = fx.Tracer()
    if not tracer.is_leaf_module(model, ""):
        return tracer.trace(model)
    graph = fx.Graph()  # one layer is a whole model too
    graph.output(graph.call_module("", (graph.placeholder("input"),)))
    return graph


class _Shapes(fx.Interpreter):
    """Runs a graph, and notes the shapes of all activations in it."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["shape"] = tuple(result.shape) if isinstance(result, Tensor) else None
        return result

    def fetch_attr(self, target: str) -> Any:
        return super().fetch_attr(target) if target else self.module


class _Units:
    """A set of indices, merged with those that must be permuted together."""

    def __init__(self, size: int | None, *, fixed: bool = False) -> None:
        self.size = size  # None: the positions of an image, until they meet a parameter
        self.fixed = fixed
        self._parent: _Units | None = None

    def root(self) -> _Units:
        return self if self._parent is None else self._parent.root()

    def merge(self, other: _Units) -> None:
        mine, theirs = self.root(), other.root()
        if mine is not theirs:
            theirs.fixed, mine._parent = theirs.fixed or mine.fixed, theirs


_Axis: TypeAlias = tuple[_Units, ...]


class _Stream(NamedTuple):
    """An activation whose axis ``dim`` < 0 is indexed by hidden units, and the others by samples and positions."""

    axis: _Axis
    dim: int
    ndim: int


class _NotUnderstood(Exception):
    """An operation for which there is no rule."""


class _Reader:
    """Goes through the operations of a model, and keeps what is known of every activation.

    An activation without hidden units, such as the input, is None. A rule takes a node of the graph and, if it
    calls a module, the module; it returns the activation that comes out.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.not_understood: list[str] = []
        self.streams: dict[fx.Node, _Stream | None] = {}
        self.tensors: dict[str, Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
        self.names = {id(tensor): name for name, tensor in self.tensors.items()}
        self.bound: dict[str, tuple[_Axis, ...]] = {}

    def axes(self) -> dict[str, tuple[Axis, ...]]:
        """Number the groups, and return the axes of all tensors."""
        for name, tensor in self.tensors.items():
            if name not in self.bound:
                self.bound[name] = tuple((_Units(size, fixed=True),) for size in tensor.shape)
            elif isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
                _fix(self.bound[name])
        groups: dict[_Units, int] = {}

        def factor(units: _Units) -> Factor:
            root = units.root()
            return Factor(units.size or 0, None if root.fixed else groups.setdefault(root, len(groups)))

        return {name: tuple(tuple(map(factor, axis)) for axis in self.bound[name]) for name in self.tensors}

    def read(self, node: fx.Node) -> None:
        """Follow the hidden units through one operation."""
        try:
            self.streams[node] = self._understand(node)
        except _NotUnderstood:
            self.streams[node] = None
            self._give_up(node)

    def _understand(self, node: fx.Node) -> _Stream | None:
        if node.op in ("placeholder", "get_attr") or _is_number(node):
            return None
        if node.op == "output":
            _fix(stream.axis for stream in self._incoming(node) if stream)
            return None
        if node.op == "call_module":
            module = self.model.get_submodule(str(node.target))
            rule = next((rule for kinds, rule in _MODULES if isinstance(module, kinds)), None)
        else:
            module, rule = None, _FUNCTIONS.get(_function(node))
        if rule is None:
            raise _NotUnderstood
        return rule(self, node, module)

    def _give_up(self, node: fx.Node) -> None:
        """Let everything that an operation touches keep its order."""
        what, tensors = _function(node), self._attributes(node)
        if node.op == "call_module":
            module = self.model.get_submodule(str(node.target))
            what = f"{node.target} ({type(module).__name__})"
            tensors += [*module.parameters(), *module.buffers()]
        streams = [stream for stream in self._incoming(node) if stream]
        _fix(stream.axis for stream in streams)
        names = [self.names[id(tensor)] for tensor in tensors if id(tensor) in self.names]
        for name in names:
            _fix(self.bound.get(name, ()))
        if streams or names:
            self.not_understood.append(what)

    def _attributes(self, node: fx.Node) -> list[Tensor]:
        """Return the parameters, buffers and constants that an operation takes in."""
        paths = (str(argument.target).rpartition(".") for argument in node.all_input_nodes if argument.op == "get_attr")
        return [getattr(self.model.get_submodule(owner), name) for owner, _, name in paths]

    def _incoming(self, node: fx.Node) -> list[_Stream | None]:
        return [self.streams[argument] for argument in node.all_input_nodes if not _is_number(argument)]

    def _only(self, node: fx.Node) -> _Stream | None:
        """Return the one activation that comes in."""
        incoming = self._incoming(node)
        if len(incoming) != 1:
            raise _NotUnderstood
        return incoming[0]

    def _bind(self, tensor: Tensor | None, *axes: _Axis) -> None:
        """State the axes of a parameter or buffer; those of one that is used twice are tied."""
        if tensor is None:
            return
        if id(tensor) not in self.names:  # computed from others, as by weight normalisation
            raise _NotUnderstood
        for old, new in zip(self.bound.setdefault(self.names[id(tensor)], axes), axes, strict=True):
            _tie(old, new)

    def layer(self, node: fx.Node, module: Any) -> _Stream:
        """Dense and convolutional layers make new units out of those at their channel axis."""
        stream, weight, window = self._only(node), module.weight, module.weight.shape[2:]
        dim = -1 - len(window)
        if getattr(module, "groups", 1) != 1 or (stream and stream.dim != dim):
            raise _NotUnderstood
        into = _of_size(weight.shape[1], stream.axis) if stream else (_Units(weight.shape[1], fixed=True),)
        before = self.bound.get(self.names.get(id(weight), ""))
        out = before[0] if before else (_Units(weight.shape[0]),)
        self._bind(weight, out, into, *((_Units(size, fixed=True),) for size in window))
        self._bind(module.bias, out)
        return _Stream(out, dim, _ndim(node.all_input_nodes[0], stream, default=1 - dim))

    def norm(self, node: fx.Node, module: Any) -> _Stream | None:
        """Normalisation treats units alike, with a scale, a shift and running statistics for each."""
        stream = self._only(node)
        if isinstance(module, nn.LayerNorm):
            understood = len(module.normalized_shape) == 1 and (stream is None or stream.dim == -1)
        else:
            understood = stream is None or stream.ndim + stream.dim == 1
        if not understood:
            raise _NotUnderstood
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and tensor.ndim == 1:
                self._bind(tensor, _of_size(len(tensor), stream.axis) if stream else (_Units(len(tensor), fixed=True),))
        return stream

    def elementwise(self, node: fx.Node, module: nn.Module | None) -> _Stream | None:
        """Functions of entries, and of corresponding entries of several activations, whose units are tied."""
        incoming, attributes = self._incoming(node), self._attributes(node)
        streams = [stream for stream in incoming if stream]
        if len({stream.dim for stream in streams}) > 1 or any(tensor.numel() > 1 for tensor in attributes):
            raise _NotUnderstood
        if not streams or len(streams) + len(attributes) < len(incoming):  # such as the input added to a layer
            _fix(stream.axis for stream in streams)
            return None
        for other in streams[1:]:
            _tie(streams[0].axis, other.axis)
        return max(streams, key=lambda stream: stream.ndim)

    def over_positions(self, node: fx.Node, module: nn.Module | None, *, dims: int) -> _Stream | None:
        """Pooling over the last dimensions."""
        stream = self._only(node)
        if stream and stream.dim >= -dims:
            raise _NotUnderstood
        return stream

    def reduction(self, node: fx.Node, module: nn.Module | None) -> _Stream | None:
        """Means and the like over dimensions other than that of the units."""
        stream, (dims, keep) = self._only(node), _arguments(node, dim=None, keepdim=False)
        if stream is None:
            return None
        if dims is None:
            raise _NotUnderstood
        dims = [dim if dim < 0 else dim - stream.ndim for dim in ([dims] if isinstance(dims, int) else dims)]
        if stream.dim in dims:
            raise _NotUnderstood
        if keep:
            return stream
        return stream._replace(dim=stream.dim + sum(dim > stream.dim for dim in dims), ndim=stream.ndim - len(dims))

    def flatten(self, node: fx.Node, module: nn.Flatten | None) -> _Stream | None:
        """An axis of units times positions."""
        start, end = (module.start_dim, module.end_dim) if module else _arguments(node, start_dim=0, end_dim=-1)
        return self._flatten(node, start, end)

    def _flatten(self, node: fx.Node, start: int, end: int) -> _Stream | None:
        stream = self._only(node)
        if stream is None:
            return None
        start, end, at = start % stream.ndim, end % stream.ndim, stream.dim % stream.ndim
        if start == 0 and end > 0:  # the samples are not positions
            raise _NotUnderstood
        ndim = stream.ndim - (end - start)
        if not start <= at <= end:
            return stream._replace(dim=(at if at < start else at - (end - start)) - ndim, ndim=ndim)
        shape = _shape(node.all_input_nodes[0]) or [None] * stream.ndim
        axis = (*_positions(shape[start:at]), *stream.axis, *_positions(shape[at + 1 : end + 1]))
        return _Stream(axis, start - ndim, ndim)

    def reshape(self, node: fx.Node, module: nn.Module | None) -> _Stream | None:
        """Those reshapings that flatten all but the samples, such as x.view(x.size(0), -1)."""
        first = node.all_input_nodes[0]
        before, after = _shape(first), _shape(node)
        if before is not None and after is not None:
            understood = tuple(after) == (before[0], prod(before[1:]))
        else:
            sizes = tuple(node.args[1]) if isinstance(node.args[1], tuple | list) else node.args[1:]
            understood = len(sizes) == 2 and _is_batch_size(sizes[0]) and sizes[1:] == (-1,)
        if self.streams[first] and not understood:
            raise _NotUnderstood
        return self._flatten(node, 1, -1)


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


def _of_size(size: int, axis: _Axis) -> _Axis:
    """Fill in how many positions there are along an axis of known size."""
    unknown = [units for units in axis if units.size is None]
    known = prod(units.size for units in axis if units.size is not None)
    if len(unknown) == 1 and size % known == 0:
        unknown[0].size = size // known
    elif unknown or known != size:
        raise _NotUnderstood
    return axis


def _positions(sizes: Iterable[int | None]) -> _Axis:
    """Return the indices of several axes of positions as one."""
    sizes = list(sizes)
    if not sizes or all(size == 1 for size in sizes):
        return ()
    return (_Units(None if None in sizes else prod(size for size in sizes if size is not None), fixed=True),)


def _function(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls, if it is one of torch's or Python's."""
    if isinstance(node.target, str):
        return node.target.removesuffix("_")
    module = getattr(node.target, "__module__", None) or ""
    name: str = getattr(node.target, "__name__", str(node.target))
    return name if module.partition(".")[0] in ("torch", "_operator", "math", "builtins") else f"{module}.{name}"


def _arguments(node: fx.Node, **defaults: Any) -> list[Any]:
    """Return the arguments after the first, in the order and with the values of the defaults."""
    given = dict(zip(defaults, node.args[1:], strict=False)) | node.kwargs
    return [given.get(name, default) for name, default in defaults.items()]


def _is_number(node: fx.Node) -> bool:
    """Tell whether a node is made of sizes, and not of activations."""
    name = _function(node)
    if node.op == "call_method" and name in ("size", "dim", "numel"):
        return True
    if node.op == "call_function" and name == "getattr":
        return node.args[1] in ("shape", "ndim")
    plain = node.op == "call_function" and getattr(node.target, "__module__", "") in ("_operator", "math", "builtins")
    return plain and bool(node.all_input_nodes) and all(map(_is_number, node.all_input_nodes))


def _is_batch_size(size: Any) -> bool:
    """Tell x.size(0) and x.shape[0]."""
    if not isinstance(size, fx.Node) or not _is_number(size):
        return False
    return _function(size) in ("size", "getitem") and size.args[1:] == (0,)


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    return node.meta.get("shape")


def _ndim(node: fx.Node, stream: _Stream | None, default: int) -> int:
    shape = _shape(node)
    if shape is not None:
        return len(shape)
    return stream.ndim if stream else default


_Rule: TypeAlias = Callable[[_Reader, fx.Node, Any], _Stream | None]

_ELEMENTWISE = (
    *("relu", "relu6", "leaky_relu", "gelu", "silu", "mish", "elu", "selu", "celu", "softplus", "softsign", "sigmoid"),
    *("hardsigmoid", "hardswish", "hardtanh", "logsigmoid", "tanh", "tanhshrink", "softmax", "log_softmax", "dropout"),
    *("dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "add", "iadd", "sub", "isub", "mul", "imul", "div"),
    *("truediv", "itruediv", "pow", "neg", "abs", "square", "sqrt", "exp", "log", "sin", "cos", "clamp", "maximum"),
    *("minimum", "contiguous", "clone", "detach", "float", "double", "half"),
)
_ELEMENTWISE_MODULES = (
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.ReLU, nn.ReLU6),
    *(nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Softsign, nn.Sigmoid),
    *(nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LogSigmoid, nn.Tanh, nn.Tanhshrink, nn.Softmax, nn.LogSoftmax),
)
_POOLINGS = ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool")


def _pooling(dims: int) -> _Rule:
    return partial(_Reader.over_positions, dims=dims)


def _pooling_modules(dims: int) -> tuple[type[nn.Module], ...]:
    return tuple(getattr(nn, f"{kind.title().replace('_', '')}{dims}d") for kind in _POOLINGS)


_FUNCTIONS: dict[str, _Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _Reader.elementwise),
    **dict.fromkeys(("mean", "sum", "amax", "amin"), _Reader.reduction),
    **dict.fromkeys(("view", "reshape"), _Reader.reshape),
    **{f"{kind}{dims}d": _pooling(dims) for kind in _POOLINGS for dims in (1, 2, 3)},
    "flatten": _Reader.flatten,
}
_MODULES: list[tuple[tuple[type[nn.Module], ...], _Rule]] = [
    ((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d), _Reader.layer),
    ((_NormBase, nn.LayerNorm), _Reader.norm),
    (_ELEMENTWISE_MODULES, _Reader.elementwise),
    *((_pooling_modules(dims), _pooling(dims)) for dims in (1, 2, 3)),
    ((nn.Flatten,), _Reader.flatten),
]
