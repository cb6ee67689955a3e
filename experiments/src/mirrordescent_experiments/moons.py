"""Section 6: learned multipliers of gradients group into the orbits of a network's symmetries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from mirrordescent.contests.contest import grid
from mirrordescent.contests.training_runs import LOSS, Training, panels
from mirrordescent.learn import Objective
from mirrordescent.learn.families import SEEDS, draw_seeds
from mirrordescent.learn.network_families import NetworkFamily, moons_family
from mirrordescent.methods import MD, Method
from mirrordescent.methods.baselines import GD
from mirrordescent.mirrors import Layerwise, Multipliers, layerwise
from mirrordescent.oracles import Exact
from mirrordescent.racing import TunableSolver
from mirrordescent.recipes.architectures import moons_network
from mirrordescent_experiments.learned_networks import CAPPED, capped, map_claims
from mirrordescent_experiments.result import Claim, Panel, Result, Table
from mirrordescent_experiments.scales import Say, Scale
from mirrordescent_experiments.training_claims import at_most

STEP = 0.05
STEPS = 100
FLOOR = 1e-3  # of a multiplier
ORBITS = ("A₁, input 1", "A₁, input 2", "b₁", "A₂", "b₂")
UNTIED = "201 multipliers"
AVERAGED = "201 averaged over orbits"
TIED = "5 multipliers"


@dataclass(frozen=True)
class Size:
    """Size of the experiment: meta-steps, first rate, networks in each, networks for evaluation."""

    meta_steps: int
    rate: float
    untied_batch: int
    tied_batch: int
    networks: int


SIZES: dict[Scale, Size] = {
    "quick": Size(2, 20.0, 4, 2, 2),
    "standard": Size(250, 1.0, 20, 4, 100),
    "paper": Size(25_000, 1e-2, 100, 100, 1000),
}


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Learn multipliers for all 201 parameters and for orbits, and train networks with both."""
    size = SIZES[scale]
    family = moons_family()
    untied = untied_map()
    tied = layerwise(moons_network(), "diagonal", "orbit")
    for mirror, batch in ((untied, size.untied_batch), (tied, size.tied_batch)):
        learn_multipliers(mirror, family, size.meta_steps, size.rate, batch)
        say(f"{sum(p.numel() for p in mirror.parameters())} multipliers learned")
    groups = by_orbit(untied)
    settings = {"scale": scale, "step": STEP, "steps": STEPS, **vars(size)}
    result = Result("moons", "Multipliers of the gradient on moons", settings)
    result.groups["learned multipliers"] = groups
    result.panels = _compare(family, untied, tied, size.networks)
    result.tables["Learned multipliers by orbit"] = _orbit_table(groups, by_orbit(tied))
    result.tables[f"Loss after {STEPS} steps"] = _loss_table(result.panels[LOSS])
    if scale != "quick":
        result.claims = claims(groups, result.panels[LOSS])
    return result


def untied_map() -> Layerwise:
    """Return a map with a multiplier for every parameter of the network."""
    shapes = {name: tuple(p.shape) for name, p in moons_network().named_parameters()}
    each = {
        name: Multipliers(torch.arange(math.prod(shape)).reshape(shape))
        for name, shape in shapes.items()
    }
    return Layerwise(each, shapes)


def learn_multipliers(
    mirror: Layerwise, family: NetworkFamily, meta_steps: int, rate: float, batch: int
) -> None:
    """Learn w ← max(w − η_k ∂L/∂w, 1e-3), with L the sum of losses along runs of mirror descent.

    Only every tenth step of a run is evaluated, to save time. η_k falls to 0 like a cosine, so that
    the noise of single networks is averaged out. A number that n entries share moves by the mean of
    their slopes: on its way it is the mean, over the orbit, of what untied multipliers would do.
    """
    method = MD(mirror, STEP)
    objective = Objective("sum", every=STEPS // 10)
    generator = torch.Generator().manual_seed(0)
    for k in range(meta_steps):
        losses, _ = objective.losses(method, family.draw(draw_seeds(batch, generator)), STEPS, k)
        mirror.zero_grad()
        torch.autograd.backward(losses.mean())
        for name, part in _multipliers(mirror).items():
            sharing = math.prod(_shapes(mirror)[name]) / part.count
            _descend(part, rate * 0.5 * (1 + math.cos(math.pi * k / meta_steps)) / sharing)
    mirror.requires_grad_(False)


@torch.no_grad()
def _descend(part: Multipliers, rate: float) -> None:
    # ∂L/∂w = (∂L/∂log w)/w
    w = part.multipliers
    slope = cast(Tensor, part.log_multiplier.grad)
    part.log_multiplier.copy_((w - rate * slope / w).clamp(min=FLOOR).log())


def by_orbit(mirror: Layerwise) -> dict[str, Tensor]:
    """Return the multipliers sorted into the orbits of the network's symmetries."""
    orbits = _multipliers(layerwise(moons_network(), "diagonal", "orbit"))
    found = []
    for name, part in _multipliers(mirror).items():
        shape = _shapes(mirror)[name]
        w = part.multipliers[part.groups].expand(shape)
        orbit = orbits[name].groups.expand(shape)
        found += [w[orbit == i].detach() for i in range(orbits[name].count)]
    return dict(zip(ORBITS, found, strict=True))


def averaged(untied: Layerwise) -> Layerwise:
    """Return the map that has the mean of learned multipliers everywhere on an orbit."""
    mirror = layerwise(moons_network(), "diagonal", "orbit").requires_grad_(False)
    means = iter(torch.stack([w.mean() for w in by_orbit(untied).values()]))
    for part in _multipliers(mirror).values():
        part.log_multiplier.copy_(torch.stack([next(means) for _ in range(part.count)]).log())
    return mirror


def _multipliers(mirror: Layerwise) -> dict[str, Multipliers]:
    return cast(dict[str, Multipliers], mirror.by_name)


def _shapes(mirror: Layerwise) -> dict[str, tuple[int, ...]]:
    return cast(dict[str, tuple[int, ...]], mirror.shapes)


def _compare(
    family: NetworkFamily, untied: Layerwise, tied: Layerwise, count: int
) -> dict[str, Panel]:
    """Train fresh networks with the learned maps, gradient descent, and the zoo's method."""
    best = _training(family, SEEDS // 2, max(2, count // 5)).tune(
        TunableSolver("GD", GD, grid(5e-2, 1e1))
    )
    methods: dict[str, Method[Any]] = {
        f"GD ({STEP:g})": GD(STEP),
        UNTIED: MD(untied, STEP),
        AVERAGED: MD(averaged(untied), STEP),
        TIED: MD(tied, STEP),
        f"tuned GD ({best:g})": GD(best),
        **{f"{name} (moons-diagonal)": method for name, method in capped("moons-diagonal").items()},
    }
    fresh = _training(family, SEEDS, count)
    return panels([fresh.run(name, method) for name, method in methods.items()])


def _training(family: NetworkFamily, seed: int, count: int) -> Training:
    networks = family.problem.initial(range(seed, seed + count))
    test = moons_family(seed=1).problem
    return Training(family.problem, networks, Exact(), STEPS, 20, test.inputs, test.targets)


def _orbit_table(untied: dict[str, Tensor], tied: dict[str, Tensor]) -> Table:
    means = {name: float(w.mean()) for name, w in untied.items()}
    rows = []
    for name, w in untied.items():
        nearest = min(abs(means[name] - mean) for other, mean in means.items() if other != name)
        spread = f"{float(w.std()):.4f}" if len(w) > 1 else "–"
        rows.append(
            [
                name,
                str(len(w)),
                f"{means[name]:.4f}",
                spread,
                f"{nearest:.4f}",
                f"{float(tied[name][0]):.4f}",
            ]
        )
    return Table(
        ("orbit", "entries", "mean", "standard deviation", "to the nearest other mean", "tied"),
        rows,
    )


def _loss_table(losses: Panel) -> Table:
    rows = []
    for curve in losses.curves:
        end = curve.values[-1]
        rows.append(
            (
                curve.name,
                f"{float(end.mean()):.4g}",
                f"{float(end.std()):.2g}",
                f"{float(end.max()):.4g}",
            )
        )
    return Table(("method", "mean over networks", "standard deviation", "worst"), rows)


def claims(groups: dict[str, Tensor], losses: Panel) -> list[Claim]:
    """Judge the grouping of the untied multipliers, and the losses of the networks trained."""
    first, second = (groups[name] for name in ORBITS[:2])
    distance = abs(float(first.mean() - second.mean()))
    spread = max(float(first.std()), float(second.std()))
    untied, tied = (float(losses[name].values[-1].mean()) for name in (UNTIED, TIED))
    return [
        Claim(
            "the multipliers of A₁ form two groups, one per input: "
            "their standard deviation within each is at most a tenth of the distance between the "
            "groups",
            spread <= distance / 10,
            f"{spread:.4f} within, {distance:.4f} between: {spread / distance:.1%}",
        ),
        Claim(
            "5 tied multipliers reach the loss of the 201 untied ones within 5 %",
            tied <= 1.05 * untied,
            f"{tied:.4g} against {untied:.4g}: {tied / untied - 1:+.1%}",
        ),
        at_most(losses, UNTIED, 1, "GD"),
        at_most(losses, UNTIED, 1, "tuned GD"),
        at_most(losses, CAPPED, 1, "tuned GD"),
        *map_claims(losses),
    ]
