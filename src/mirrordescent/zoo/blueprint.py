"""Blueprints: the structure of a learned method as plain data, from which it can be built again.

A blueprint is a dict {"type": name, …} of numbers, strings and other blueprints; the learned numbers are not in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from mirrordescent.methods import AMD, ASMD, LPD, MD, SMD
from mirrordescent.mirrors import Conjugate, ConvICNN, DenseICNN, Diagonal, Euclidean, LearnedPair
from mirrordescent.schedules import Polynomial, Prefix

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


PARTS: dict[type[nn.Module], Part] = {
    MD: _mirrored(MD),
    SMD: _mirrored(SMD),
    AMD: _mirrored(AMD),
    ASMD: _mirrored(ASMD),
    LPD: Part(lambda m: {}, LPD),
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
    Euclidean: Part(lambda m: {}, Euclidean),
    Diagonal: Part(lambda m: {"shape": list(m.d.shape)}, lambda shape: Diagonal(nn.Parameter(torch.ones(shape)))),
    Prefix: Part(
        lambda s: {"count": len(s.values), "extension": s.extension, "scale": s.scale, "monotone": s.monotone},
        lambda count, **rule: Prefix(torch.ones(count), **rule),
    ),
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
