"""What learning does to equivariance: Proposition 3, on networks and on images."""

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

LONGEST = 10_000  # order of a permutation beyond which a batch closed under it is not made


def defects_through_learning(
    methods: Mapping[str, Method[Any]],
    family: ProblemFamily,
    settings: Settings,
    measure: Callable[[Any], float],
) -> dict[str, dict[str, float]]:
    """Return a defect of every method before and after learning: tied maps against untied ones.

    Tied maps are equivariant whatever they learn. Untied ones are before learning, and after it as
    far as the starts they were learned on have the same distribution as their permutations: not
    exactly, for finitely many. The same for
    images: a convolution, or one number for all pixels, is tied along the orbits of translations; a
        number for every pixel is not, and learns where the pictures of the family differ from each
        other.

    Args:
        methods: the methods by name, which are left as they are.
        family: the problems to learn on.
        settings: how to learn.
        measure: returns the defect of a method, such as ``lambda m: network_defect(m, problem,
            model, generator)``, or ``lambda m: image_defects(m.mirror, x)["∇ψ"]["translation"]``.
    """
    found = {}
    for name, method in methods.items():
        learned = learn(family, copy.deepcopy(method), settings, progress=False).method
        found[name] = {"before learning": measure(method), "learned": measure(learned)}
    return found


def meta_gradient_defect(
    method: Method[Any],
    problem: Problem,
    start: Mapping[str, Tensor],
    symmetry: Symmetry,
    g: Mapping[int, Tensor],
    horizon: int,
) -> float:
    """Return ‖g·∇𝓛 − ∇𝓛‖ / ‖∇𝓛‖ for 𝓛 = the mean of L(z_N) over a batch of starts closed under g
    (Proposition 3).

    The proposition is about expectations: if starts have the same distribution as their
    permutations, and Ω_0 is equivariant, so is Ω_1 = Ω_0 − η∇𝓛(Ω_0). On a batch {z, g·z, g²·z, …}
    that is closed under g the same holds without an expectation, so the defect of a map that is
    equivariant before learning is rounding.

    Args:
        method: a method with a layer-wise map of diagonals or tied maps, whose parameters are what
            is learned.
        problem: the loss of the network.
        start: z, the parameters of one network.
        symmetry: the symmetry of the network.
        g: a permutation of each set of hidden units.
        horizon: N, the number of steps.
    """
    orbit = _closed_under(g, start, symmetry)
    starts = {name: torch.stack([z[name] for z in orbit]) for name in start}
    mirror = cast(Layerwise, method.mirror)
    values = unroll(
        method, problem, starts, horizon, Default(), measure=lambda k, x: problem.value(x)
    )
    parameters = [p for p in mirror.parameters() if p.requires_grad]
    found = torch.autograd.grad(values[-1].mean(), parameters)
    gradients = {id(p): gradient for p, gradient in zip(parameters, found, strict=True)}
    spread = per_entry(mirror, start, lambda p: gradients[id(p)])
    before, after = (
        torch.cat([z[name].flatten() for name in spread])
        for z in (spread, permute(spread, g, symmetry))
    )
    return float((after - before).norm() / before.norm()) if bool(before.any()) else 0.0


def orbit_spread(
    mirror: Layerwise, start: Mapping[str, Tensor], symmetry: Symmetry
) -> dict[str, float]:
    """Return how much the learned numbers vary within the orbits of hidden units, per tensor,
    relative to their size.

    The root mean square of the differences from the mean over an orbit, over that of the numbers
    themselves: 0 for tied maps, and for untied ones that learning has kept equivariant.
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
    """Return what belongs to each parameter of a layer-wise map, spread out over the entries of the
    network's tensors.

    Numbers of a tensor's entries come as ``(…, *shape)``: several per entry in the leading
    dimension.
    """
    found = {}
    for name, leaf in start.items():
        part = mirror[name]
        if isinstance(part, Tied):
            grouped = [
                of(p).reshape(part.count, -1)[part.groups].movedim(-1, 0) for p in part.parameters()
            ]
            found[name] = torch.cat([numbers.expand(-1, *leaf.shape) for numbers in grouped])
        elif isinstance(part, Diagonal):
            found[name] = torch.cat([of(p).expand(1, *leaf.shape) for p in part.parameters()])
        else:
            raise TypeError(
                f"{type(part).__name__} does not learn numbers for entries: use Diagonal "
                "or a tied map"
            )
    return found


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
        if len(orbit) > LONGEST:
            raise ValueError("g has too many powers: take a permutation of shorter cycles")
    return orbit
