"""Equivariance before and after learning (Proposition 3), for networks and images."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from mirrordescent.learn import ProblemFamily, Settings, learn
from mirrordescent.learn.unrolling import unroll
from mirrordescent.methods import Method
from mirrordescent.mirrors import Diagonal, Layerwise
from mirrordescent.mirrors.symmetry import Symmetry, permute
from mirrordescent.mirrors.tied import Tied
from mirrordescent.oracles import Default
from mirrordescent.problems import Problem

LARGEST_ORDER = 10_000  # of a permutation whose orbit is a batch


def defects_through_learning(
    methods: Mapping[str, Method[Any]],
    family: ProblemFamily,
    settings: Settings,
    measure: Callable[[Any], float],
) -> dict[str, dict[str, float]]:
    """Return the equivariance defect of every method before and after learning.

    Tied maps are equivariant whatever they learn. Untied maps are equivariant before learning.
    After learning they are so only if the starts have the same distribution as their permutations,
    which does not hold exactly for finitely many starts. For images, a convolution or one number
    for all pixels is tied along the orbits of translations. A number for every pixel is not tied,
    and learns where the pictures of the family differ from each other.

    Args:
        methods: Methods by name. They are not changed.
        family: Problems to learn on.
        settings: Settings of learning.
        measure: Function that returns the defect of a method, such as ``lambda m:
            network_defect(m, problem, model, generator)``, or ``lambda m: image_defects(m.mirror,
            x)["∇ψ"]["translation"]``.
    """
    defects = {}
    for name, method in methods.items():
        learned = learn(family, copy.deepcopy(method), settings, progress=False).method
        defects[name] = {"before learning": measure(method), "learned": measure(learned)}
    return defects


def meta_gradient_defect(
    method: Method[Any],
    problem: Problem,
    start: Mapping[str, Tensor],
    symmetry: Symmetry,
    g: Mapping[int, Tensor],
    horizon: int,
) -> float:
    """Return the defect ‖g·∇𝓛 − ∇𝓛‖ / ‖∇𝓛‖ of the meta-gradient (Proposition 3).

    𝓛 is the mean of L(z_N) over a batch of starts that is closed under g. The proposition is about
    expectations: if starts have the same distribution as their permutations, and Ω_0 is
    equivariant, so is Ω_1 = Ω_0 − η∇𝓛(Ω_0). On the batch {z, g·z, g²·z, …} the same holds without
    an expectation. So the defect of a map that is equivariant before learning is rounding.

    Args:
        method: Method with a layer-wise map of diagonals or tied maps, whose parameters are
            learned.
        problem: Loss of the network.
        start: Parameters z of one network.
        symmetry: Symmetry of the network.
        g: Permutation of each set of hidden units.
        horizon: Number N of steps.
    """
    orbit = _closed_under(g, start, symmetry)
    starts = {name: torch.stack([z[name] for z in orbit]) for name in start}
    mirror = cast(Layerwise, method.mirror)
    values = unroll(
        method, problem, starts, horizon, Default(), measure=lambda k, x: problem.value(x)
    )
    parameters = [p for p in mirror.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(values[-1].mean(), parameters)
    by_parameter = {id(p): gradient for p, gradient in zip(parameters, gradients, strict=True)}
    by_entry = per_entry(mirror, start, lambda p: by_parameter[id(p)])
    permuted = permute(by_entry, g, symmetry)
    before = torch.cat([by_entry[name].flatten() for name in by_entry])
    after = torch.cat([permuted[name].flatten() for name in by_entry])
    if not bool(before.any()):
        return 0.0
    return float((after - before).norm() / before.norm())


def orbit_spread(
    mirror: Layerwise, start: Mapping[str, Tensor], symmetry: Symmetry
) -> dict[str, float]:
    """Return the relative variation of the learned numbers within orbits of hidden units.

    For every tensor it is the root mean square of the differences from the mean of an orbit, over
    the root mean square of the numbers. It is 0 for tied maps, and for untied maps that are still
    equivariant after learning.
    """
    result = {}
    for name, numbers in per_entry(mirror, start, lambda p: p.detach()).items():
        orbits = symmetry.orbits(name).expand(start[name].shape).reshape(-1)
        flat = numbers.reshape(-1, len(orbits))
        sums = flat.new_zeros(len(flat), int(orbits.max()) + 1).index_add_(1, orbits, flat)
        means = sums / orbits.bincount()
        result[name] = float(
            (flat - means[:, orbits]).square().mean().sqrt() / flat.square().mean().sqrt()
        )
    return result


def per_entry(
    mirror: Layerwise, start: Mapping[str, Tensor], of: Callable[[nn.Parameter], Tensor]
) -> dict[str, Tensor]:
    """Return values of the parameters of a layer-wise map for every entry of a network.

    Args:
        mirror: Layer-wise map of diagonals or tied maps.
        start: Tensors of the network.
        of: Function that returns the value of a parameter of the map.

    Returns:
        Values ``(…, *shape)`` of every tensor; the leading dimension is for several parameters.
    """
    values = {}
    for name, leaf in start.items():
        part = mirror[name]
        if isinstance(part, Tied):
            grouped = [
                of(p).reshape(part.count, -1)[part.groups].movedim(-1, 0) for p in part.parameters()
            ]
            values[name] = torch.cat([numbers.expand(-1, *leaf.shape) for numbers in grouped])
        elif isinstance(part, Diagonal):
            values[name] = torch.cat([of(p).expand(1, *leaf.shape) for p in part.parameters()])
        else:
            raise TypeError(
                f"{type(part).__name__} does not learn numbers for entries: use Diagonal "
                "or a tied map"
            )
    return values


def _closed_under(
    g: Mapping[int, Tensor], z: Mapping[str, Tensor], symmetry: Symmetry
) -> list[dict[str, Tensor]]:
    """Return z, g·z, g²·z, …, until the sequence returns to z."""
    orbit = [dict(z)]
    power = {group: rho.clone() for group, rho in g.items()}
    while any(
        not torch.equal(rho, torch.arange(len(rho), device=rho.device)) for rho in power.values()
    ):
        orbit.append(permute(orbit[-1], g, symmetry))
        power = {group: rho[g[group]] for group, rho in power.items()}
        if len(orbit) > LARGEST_ORDER:
            raise ValueError(f"the order of g must be at most {LARGEST_ORDER}: take shorter cycles")
    return orbit
