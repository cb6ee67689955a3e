"""Blueprints: the structure of a learned method as plain data, from which it can be built again.

A blueprint is a dict {"type": name, …} of numbers, strings and other blueprints; the learned numbers are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mirrordescent.learn.reptile import Initialisation
from mirrordescent.methods import AMD, ASMD, LPD, MD, SMD, Equipped
from mirrordescent.methods.accelerated import _DualWeight, _Mixing
from mirrordescent.mirrors import (
    Conjugate,
    ConvICNN,
    DenseICNN,
    Diagonal,
    Euclidean,
    Layerwise,
    LearnedPair,
    Multipliers,
    OrthantEntropy,
    Spectral,
    Spline,
    Stencil,
    Tied,
)
from mirrordescent.oracles import Exact, InTurn, Minibatch, Relative, Rounded
from mirrordescent.schedules import Constant, Interpolated, Polynomial, PowerLaws, Prefix

Blueprint = dict[str, Any]


class Part(NamedTuple):
    """How one type is written down, and how it is built."""

    describe: Callable[[Any], Blueprint]
    build: Callable[..., nn.Module]


def _mirrored(method: type[nn.Module]) -> Part:
    return Part(
        lambda m: {"mirror": describe(m.mirror), "t": describe(m.t)},
        lambda mirror, t: method(build(mirror), build(t)),
    )


def _groups(shape: list[int], count: int) -> Tensor:
    """Return any groups of this shape and count; which entries are tied is among the stored numbers."""
    return (torch.arange(math.prod(shape)) % count).reshape(shape)


def _ties(mirror: Tied) -> Blueprint:
    return {"shape": list(mirror.groups.shape), "count": mirror.count}


def _layerwise(names: list[str], maps: list[Blueprint], shapes: list[list[int]] | None) -> Layerwise:
    by_name = {name: build(part) for name, part in zip(names, maps, strict=True)}
    sizes = None if shapes is None else {name: tuple(shape) for name, shape in zip(names, shapes, strict=True)}
    return Layerwise(by_name, sizes)  # type: ignore[arg-type]


def _describe_accelerated(method: AMD) -> Blueprint:
    own = {
        name: describe(schedule)
        for name, schedule in (("mixing", method.mixing), ("dual_weight", method.dual_weight))
        if not isinstance(schedule, (_Mixing, _DualWeight))  # those are made of r, cap and weight_offset
    }
    return {
        **own,
        "mirror": describe(method.mirror),
        "t": describe(method.t),
        "gamma": describe(method.gamma),
        # The map itself is the usual regulariser of learned methods, and must then be one object with it.
        "regulariser": None if method.regulariser is method.mirror else describe(method.regulariser),
        "r": method.r,
        "storage": method.storage,
        "answer": method.returned,
        "weight_offset": method.weight_offset,
        "cap": method.cap,
    }


def _accelerated(
    mirror: Blueprint,
    t: Blueprint,
    gamma: Blueprint,
    regulariser: Blueprint | None,
    mixing: Blueprint | None = None,
    dual_weight: Blueprint | None = None,
    **rest: Any,
) -> AMD:
    psi = build(mirror)
    second = psi if regulariser is None else build(regulariser)
    own: Any = {
        name: build(part) for name, part in (("mixing", mixing), ("dual_weight", dual_weight)) if part is not None
    }
    return AMD(psi, build(t), gamma=build(gamma), regulariser=second, **own, **rest)  # type: ignore[arg-type]


PARTS: dict[type[nn.Module], Part] = {
    MD: _mirrored(MD),
    SMD: _mirrored(SMD),
    AMD: Part(_describe_accelerated, _accelerated),
    ASMD: _mirrored(ASMD),
    LPD: Part(lambda m: {}, LPD),
    Equipped: Part(
        lambda m: {"method": describe(m.method), "oracle": describe(m.oracle)},
        lambda method, oracle: Equipped(build(method), build(oracle)),  # type: ignore[arg-type]
    ),
    Rounded: Part(
        lambda o: {"curvature": describe(o.curvature)},
        lambda curvature: Rounded(build(curvature)),
    ),
    Relative: Part(
        lambda o: {"base": describe(o.base)},
        lambda base: Relative(build(base)),  # type: ignore[arg-type]
    ),
    Minibatch: Part(lambda o: {"size": o.size}, Minibatch),
    InTurn: Part(lambda o: {}, InTurn),
    Exact: Part(lambda o: {}, Exact),
    LearnedPair: Part(
        lambda m: {"forward": describe(m.forward_potential), "backward": describe(m.backward_potential)},
        lambda forward, backward: LearnedPair(build(forward), build(backward)),  # type: ignore[arg-type]
    ),
    Conjugate: Part(
        lambda m: {"potential": describe(m.dual_potential), "start": m.start},
        lambda potential, start: Conjugate(build(potential), start),  # type: ignore[arg-type]
    ),
    ConvICNN: Part(ConvICNN.config, ConvICNN),
    DenseICNN: Part(DenseICNN.config, DenseICNN),
    OrthantEntropy: Part(lambda m: {}, OrthantEntropy),
    Euclidean: Part(lambda m: {}, Euclidean),
    Diagonal: Part(lambda m: {"shape": list(m.d.shape)}, lambda shape: Diagonal(nn.Parameter(torch.ones(shape)))),
    Multipliers: Part(_ties, lambda shape, count: Multipliers(_groups(shape, count))),
    Spline: Part(
        lambda m: {**_ties(m), "knots": m.knots, "reach": m.reach, "floor": m.floor},
        lambda shape, count, floor, **rule: Spline(_groups(shape, count), slope=1 + floor, floor=floor, **rule),
    ),
    Spectral: Part(lambda m: {"cutoff": m.cutoff, "knots": m.knots}, Spectral),
    Stencil: Part(lambda m: {}, Stencil),
    Layerwise: Part(
        lambda m: {
            "names": list(m.names),
            "maps": [describe(mirror) for mirror in m.maps],
            "shapes": None if m.shapes is None else [list(m.shapes[name]) for name in m.names],
        },
        _layerwise,
    ),
    Prefix: Part(
        lambda s: {"count": len(s.values), "extension": s.extension, "scale": s.scale, "monotone": s.monotone},
        lambda count, **rule: Prefix(torch.ones(count), **rule),
    ),
    Interpolated: Part(lambda s: {"counts": s.counts}, lambda counts: Interpolated(counts, torch.ones(len(counts)))),
    PowerLaws: Part(
        # JSON has no infinity.
        lambda s: {"counts": s.counts, "power": s.power, "bound": None if math.isinf(s.bound) else s.bound},
        lambda counts, power, bound: PowerLaws(
            counts, torch.full((len(counts),), 1.0 if bound is None else bound / 2), power, bound or math.inf
        ),
    ),
    Initialisation: Part(lambda m: {"shapes": m.shapes}, Initialisation.empty),
    Constant: Part(lambda s: {"c": s.c}, Constant),
    Polynomial: Part(lambda s: {"c": s.c, "power": s.power}, Polynomial),
}
_BY_NAME = {kind.__name__: part for kind, part in PARTS.items()}


def describe(module: nn.Module) -> Blueprint:
    """Write down the structure of a method, map, potential or schedule."""
    for kind in type(module).__mro__:
        if kind in PARTS:
            return {"type": kind.__name__, **PARTS[kind].describe(module)}
    raise TypeError(f"{type(module).__name__} cannot be stored: add it to mirrordescent.zoo.blueprint.PARTS")


def build(blueprint: Blueprint) -> nn.Module:
    """Build the module that a blueprint describes, with the parameters it has before learning."""
    arguments = dict(blueprint)
    name = arguments.pop("type", None)
    if name not in _BY_NAME:
        raise ValueError(f"unknown part {name!r} in a blueprint")
    return _BY_NAME[name].build(**arguments)
