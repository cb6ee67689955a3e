"""Equivariance measured: Propositions 2 and 3, for permutations of hidden units and for motions of images.

A map Ω is equivariant under a group acting by g· if Ω(g·x) = g·Ω(x). Measured is the *defect*, by how much that fails.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Generator, Tensor, nn

from mirrordescent.learn import ProblemFamily, Settings, learn, unroll
from mirrordescent.methods import GD, Method
from mirrordescent.mirrors import Diagonal, Layerwise, MirrorMap, Symmetry, Tied, check_equivariance, permute
from mirrordescent.oracles import Exact
from mirrordescent.problems import Problem

Action: TypeAlias = Callable[[Tensor], Tensor]
SHIFT = 3  # pixels
MARGIN = 10  # pixels at the border that are left out where the border itself breaks the symmetry
LONGEST = 10_000  # order of a permutation beyond which a batch closed under it is not made

IMAGE_ACTIONS: dict[str, Action] = {
    "translation": lambda x: x.roll((SHIFT, SHIFT), (-2, -1)),
    "horizontal flip": lambda x: x.flip(-1),
    "vertical flip": lambda x: x.flip(-2),
    "rotation by 90°": lambda x: x.rot90(1, (-2, -1)),
}


@dataclass(frozen=True)
class Defects:
    """Defects of several maps: under some elements of a group, or before and after learning, {map: {which: …}}."""

    group: str
    by_name: Mapping[str, Mapping[str, float]]


def defect(omega: Action, act: Action, x: Tensor, margin: int = 0) -> float:
    """‖Ω(g·x) − g·Ω(x)‖ / ‖Ω(x)‖, the largest over a batch, without a margin around images.

    For an iteration pass what it moves by, Ω − I, which is equivariant if and only if Ω is: relative to Ω(x) itself,
    every short step looks equivariant.

    >>> import torch
    >>> x = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> defect(lambda x: x * torch.tensor([1.0, 2.0]), IMAGE_ACTIONS["vertical flip"], x)
    0.0
    """
    after = act(omega(x))
    difference = omega(act(x)) - after
    if margin:
        inner = (..., slice(margin, -margin), slice(margin, -margin))
        difference, after = difference[inner], after[inner]
    sizes = torch.linalg.vector_norm(after.flatten(1), dim=1).clamp(min=torch.finfo(after.dtype).tiny)
    return float((torch.linalg.vector_norm(difference.flatten(1), dim=1) / sizes).max())


@torch.no_grad()
def image_defects(mirror: MirrorMap, x: Tensor) -> dict[str, dict[str, float]]:
    """Return the defects of ∇ψ and ∇ψ* of a map on images (batch, channels, height, width) under their motions.

    Translations are circular. A network that pads with zeros commutes with them except at the border; where images are
    large enough, the defect away from it is measured too.
    """
    y = cast(Tensor, mirror.to_dual(x))
    fields = {"∇ψ": (mirror._to_dual, x), "∇ψ*": (mirror._to_primal, y)}
    found = {}
    for name, (field, at) in fields.items():
        found[name] = {motion: defect(field, act, at) for motion, act in IMAGE_ACTIONS.items()}
        if min(at.shape[-2:]) > 2 * (MARGIN + SHIFT):
            translation = IMAGE_ACTIONS["translation"]
            found[name]["translation, away from the border"] = defect(field, translation, at, MARGIN + SHIFT)
    return found


def gradient_descent_defect(problem: Problem, model: nn.Module, generator: Generator) -> float:
    """Return the defect of gradient descent on a network's loss under permutations of hidden units (Proposition 2).

    The loss is invariant, L(g·z) = L(z), so z − η∇L(z) is equivariant: the defect is rounding.
    """
    return network_defect(GD(1.0), problem, model, generator)


def network_defect(
    method: Method[Any], problem: Problem, model: nn.Module, generator: Generator, steps: int = 1
) -> float:
    """Return max_g ‖Ω(g·z) − g·Ω(z)‖ / ‖Ω(z) − z‖ for Ω, some steps of a method on a network's loss.

    Args:
        method: how the network is trained.
        problem: its loss.
        model: the network, at the parameters z.
        generator: draws permutations g of its hidden units.
        steps: how many.
    """

    def omega(z: dict[str, Tensor]) -> Mapping[str, Tensor]:
        state = method.init({name: leaf.unsqueeze(0) for name, leaf in z.items()})
        with torch.no_grad():
            for _ in range(steps):
                state = method.step(problem, state, Exact())
        return {name: leaf.squeeze(0) for name, leaf in cast(dict[str, Tensor], method.answer(state)).items()}

    return check_equivariance(omega, model, generator)


def defects_through_learning(
    methods: Mapping[str, Method[Any]],
    family: ProblemFamily,
    settings: Settings,
    model: nn.Module,
    generator: Generator,
) -> dict[str, dict[str, float]]:
    """Return the defect of every method before and after learning, on a held-out network: tied maps against untied.

    Tied maps are equivariant whatever they learn. Untied ones are before learning, and after it as far as the starts
    they were learned on were distributed alike with their permutations: not exactly, on finitely many.

    Args:
        methods: with maps for the network, by name; they are left as they are.
        family: of problems whose points are parameters of the network.
        settings: how to learn.
        model: the network.
        generator: draws permutations.
    """
    problem = family.validation(1).problem
    return _through_learning(methods, family, settings, lambda m: network_defect(m, problem, model, generator))


def image_defects_through_learning(
    methods: Mapping[str, Method[Any]], family: ProblemFamily, settings: Settings, motion: str
) -> dict[str, dict[str, float]]:
    """Return the defect of every method's ∇ψ under a motion of images, before and after learning.

    The same for images: a convolution, or one number for all pixels, is tied along the orbits of translations; a number
    for every pixel is not, and learns where in the picture the pictures of the family differ.

    Args:
        methods: with maps for images, by name; they are left as they are.
        family: of problems whose points are images.
        settings: how to learn.
        motion: one of ``IMAGE_ACTIONS``.
    """
    x = cast(Tensor, family.validation(1).x0)
    return _through_learning(methods, family, settings, lambda m: image_defects(m.mirror, x)["∇ψ"][motion])


def _through_learning(
    methods: Mapping[str, Method[Any]], family: ProblemFamily, settings: Settings, measure: Callable[[Any], float]
) -> dict[str, dict[str, float]]:
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
    """Return ‖g·∇𝓛 − ∇𝓛‖ / ‖∇𝓛‖ for 𝓛 = the mean of L(z_N) over a batch of starts closed under g (Proposition 3).

    The proposition is about expectations: if starts are distributed alike with their permutations, and Ω_0 is
    equivariant, so is Ω_1 = Ω_0 − η∇𝓛(Ω_0). On a batch {z, g·z, g²·z, …} that is closed under g the same
    holds without an expectation, so the defect of a map that is equivariant before learning is rounding.

    Args:
        method: with a layer-wise map of diagonals or tied maps, whose parameters are what is learned.
        problem: the loss of the network.
        start: z, the parameters of one network.
        symmetry: of the network.
        g: a permutation of each set of hidden units.
        horizon: N.
    """
    orbit = _closed_under(g, start, symmetry)
    starts = {name: torch.stack([z[name] for z in orbit]) for name in start}
    mirror = cast(Layerwise, method.mirror)
    values = unroll(method, problem, starts, horizon, Exact(), measure=lambda k, x: problem.value(x))
    parameters = [p for p in mirror.parameters() if p.requires_grad]
    found = torch.autograd.grad(values[-1].mean(), parameters)
    gradients = {id(p): gradient for p, gradient in zip(parameters, found, strict=True)}
    spread = per_entry(mirror, start, lambda p: gradients[id(p)])
    return _relative_distance(permute(spread, g, symmetry), spread)


def orbit_spread(mirror: Layerwise, start: Mapping[str, Tensor], symmetry: Symmetry) -> dict[str, float]:
    """Return how far what was learned varies within the orbits of hidden units, per tensor, relative to its size.

    The root mean square of the differences from the mean over an orbit, over that of the numbers themselves: 0 for tied
    maps, and for untied ones that learning has kept equivariant.
    """
    result = {}
    for name, numbers in per_entry(mirror, start, lambda p: p.detach()).items():
        orbits = symmetry.orbits(name).expand(start[name].shape).reshape(-1)
        flat = numbers.reshape(-1, len(orbits))
        sums = flat.new_zeros(len(flat), int(orbits.max()) + 1).index_add_(1, orbits, flat)
        means = sums / orbits.bincount()
        result[name] = float((flat - means[:, orbits]).square().mean().sqrt() / flat.square().mean().sqrt())
    return result


def per_entry(
    mirror: Layerwise, start: Mapping[str, Tensor], of: Callable[[nn.Parameter], Tensor]
) -> dict[str, Tensor]:
    """Return what belongs to each parameter of a layer-wise map, spread out over the entries of the network's tensors.

    Numbers of a tensor's entries come as ``(…, *shape)``: several per entry in the leading dimension.
    """
    found = {}
    for name, leaf in start.items():
        part = mirror[name]
        if not isinstance(part, (Tied, Diagonal)):
            raise TypeError(f"{type(part).__name__} does not learn numbers for entries: use Diagonal or a tied map")
        pieces = []
        for parameter in part.parameters():
            numbers = of(parameter)
            if isinstance(part, Tied):
                numbers = numbers.reshape(part.count, -1)[part.groups].movedim(-1, 0)
                pieces.append(numbers.expand(-1, *leaf.shape))
            else:
                pieces.append(numbers.expand(1, *leaf.shape))
        found[name] = torch.cat(pieces)
    return found


def _closed_under(g: Mapping[int, Tensor], z: Mapping[str, Tensor], symmetry: Symmetry) -> list[dict[str, Tensor]]:
    """Return z, g·z, g²·z, … until it comes back to z."""
    orbit = [dict(z)]
    power = {group: rho.clone() for group, rho in g.items()}
    while any(not torch.equal(rho, torch.arange(len(rho), device=rho.device)) for rho in power.values()):
        orbit.append(permute(orbit[-1], g, symmetry))
        power = {group: rho[g[group]] for group, rho in power.items()}
        if len(orbit) > LONGEST:
            raise ValueError("g has too many powers: take a permutation of shorter cycles")
    return orbit


def _relative_distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    difference = sum(float((first[name] - second[name]).square().sum()) for name in second)
    size = sum(float(leaf.square().sum()) for leaf in second.values())
    return (difference / size) ** 0.5 if size else 0.0
