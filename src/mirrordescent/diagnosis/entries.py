"""Diagnose a learned map, by its name or from a file, on a kind of problem."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from mirrordescent import zoo
from mirrordescent.conditioning import given
from mirrordescent.contests.image_contests import denoising, inpainting
from mirrordescent.contests.svm_contests import load_features, starts
from mirrordescent.diagnosis.learned_equivariance import defects_through_learning
from mirrordescent.learn import (
    Descent,
    NetworkFamily,
    Objective,
    ProblemFamily,
    Settings,
    Validation,
)
from mirrordescent.learn.recipe import CONTROL
from mirrordescent.methods import (
    AMD,
    ASMD,
    MD,
    SMD,
    Conditioned,
    Equipped,
    Method,
    Preconditioned,
    Switch,
)
from mirrordescent.mirrors import Euclidean, Layerwise, MirrorMap, Multipliers, layerwise
from mirrordescent.oracles import Relative
from mirrordescent.parts import Part
from mirrordescent.problems import Problem
from mirrordescent.problems.network_training import NetworkTraining
from mirrordescent.recipes.network_maps import NETWORK_RECIPES, descent
from mirrordescent.recipes.printed_maps import PRINTED_RECIPES
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.task_families import TomographyFamily
from mirrordescent.recipes.tomography_maps import GROUPS
from mirrordescent.schedules import Prefix
from mirrordescent.theory import Diagnosis, diagnose
from mirrordescent.theory.equivariance import Defects, network_defect
from mirrordescent.trees import Tree, sum_per_sample, tree_map

COUNT = 8
SIDE = 36
ITERATIONS = 200
# The network on which a geometry for all kinds of networks is diagnosed.
REPRESENTATIVE = {ENTRY: "mnist-cnn-diagonal"}
DATA = 200  # number of training data for the diagnosis of networks
LEARNED: dict[str, Callable[[MirrorMap, Prefix], Method[Any]]] = {
    "LMD": MD,
    "LSMD": SMD,
    "LAMD": AMD,
    "LASMD": ASMD,
}
"""The paper's methods in a learned geometry: mirror descent (LMD), with stochastic gradients
(LSMD), accelerated (LAMD), and both (LASMD).
"""
DUAL_STORED = ("LSMD", "LAMD", "LASMD")
# To compare tied maps with untied maps, both are learned briefly.
BRIEF_LEARNING = Settings(
    meta_steps=10,
    batch=4,
    horizon=10,
    optimiser=Descent(0.05),
    objective=Objective(weights="last"),
    validation=Validation(every=10, batch=2, horizons=(1.0,)),
)


class EntrywiseWeighted(MirrorMap):
    """The weighted potential ψ(x) = Σⱼ sⱼ φ(xⱼ) of a separable map with potential Σⱼ φ(xⱼ).

    In this geometry, a run with relative gradients g/s is a run with the gradients g.

    Args:
        mirror: Map that treats all entries the same way.
        weights: Weights s > 0 of one sample.
    """

    def __init__(self, mirror: MirrorMap, weights: Tensor) -> None:
        super().__init__()
        self.mirror = mirror
        self.weights = weights
        self.exact = mirror.exact
        self.primal_domain = mirror.primal_domain
        self.dual_domain = mirror.dual_domain
        self.defined_on_boundary = mirror.defined_on_boundary
        self.proven = mirror.proven

    def _potential(self, x: Tensor) -> Tensor:
        # Every entry is a sample, so that potentials come entry by entry.
        potentials = self.mirror.potential(x.reshape(-1, 1)).reshape(x.shape)
        return sum_per_sample(self.weights * potentials)

    def _to_dual(self, x: Tensor) -> Tensor:
        return self.weights * self.mirror.to_dual(x)

    def _to_primal(self, y: Tensor) -> Tensor:
        return self.mirror.to_primal(y / self.weights)


class Subject(NamedTuple):
    """A batch of problems and their starting points."""

    problem: Problem
    x0: Tree


IMAGE_PROBLEMS = {"inpaint": inpainting, "denoise": denoising}


def _images(task: str) -> Callable[[str, int, int, Path | None], Subject]:
    def make(name: str, count: int, side: int, directory: Path | None) -> Subject:
        problem = IMAGE_PROBLEMS[task](count, side, False, directory).double()
        return Subject(problem, problem.start())

    return make


def _machine(name: str, count: int, side: int, directory: Path | None) -> Subject:
    contest = starts(load_features(directory)[0], count, ITERATIONS, seed=0)
    return Subject(contest.problem, contest.x0)


def _networks(name: str, count: int, side: int, directory: Path | None) -> Subject:
    drawn = network_family(name, directory).validation(count)
    return Subject(drawn.problem.double(), tree_map(lambda leaf: leaf.double(), drawn.x0))


def _tomography(name: str, count: int, side: int, directory: Path | None) -> Subject:
    drawn = TomographyFamily(side, terms=GROUPS).validation(count)
    return Subject(drawn.problem.double(), tree_map(lambda leaf: leaf.double(), drawn.x0))


PROBLEMS: dict[str, Callable[[str, int, int, Path | None], Subject]] = {
    **{task: _images(task) for task in IMAGE_PROBLEMS},
    "svm": _machine,
    "tomography": _tomography,
    "network": _networks,
}


def diagnose_entry(
    name: str | Path,
    problem: str,
    directory: Path | None = None,
    *,
    count: int = COUNT,
    side: int = SIDE,
    iterations: int = ITERATIONS,
    exact_iterates: bool = False,
) -> Diagnosis:
    """Diagnose an entry of the zoo or a saved map on a batch of problems, in double precision.

    A map learned for mirror descent runs in all methods with the learned step sizes: LMD and
    Algorithm 1 (primal-stored), LSMD, LAMD and LASMD (dual-stored). A map whose ∇ψ is itself an
    inversion runs in the dual-stored methods only. A map learned in accelerated mirror descent
    runs in the method it was learned in.

    Args:
        name: Name of the entry, or path of a file.
        problem: Kind of problem: "inpaint", "denoise", "svm", "tomography" or "network". The last
            kind is the network that the entry was learned to train, on a few of its data.
        directory: Folder of the data sets. If a data set is missing, bundled pictures and digits
            are used.
        count: Number of problems.
        side: Side of images.
        iterations: Number of iterations of every run.
        exact_iterates: Whether to also compute the exact iterates, by a Newton solve in
            every step.
    """
    if problem not in PROBLEMS:
        raise ValueError(f"problem must be one of {', '.join(PROBLEMS)}, got {problem!r}")
    entry = copy.deepcopy(zoo.load(name)).double()
    card = zoo.card(name)
    subject = PROBLEMS[problem](card.name, count, side, directory)
    if isinstance(entry, Conditioned):
        entry = _at_mean_features(entry, subject)
    oracle = None
    if isinstance(entry, Equipped):
        oracle = entry.oracle
        entry = entry.method
    mirror = entry if isinstance(entry, MirrorMap) else getattr(entry, "mirror", None)
    if not isinstance(mirror, MirrorMap):
        raise TypeError(f"{name} has no mirror map: there is nothing to diagnose")
    before = cast(MirrorMap, unlearned(mirror).double())
    if isinstance(oracle, Relative):
        weights = cast(Tensor, subject.problem.sensitivity)
        oracle = oracle.oracle
        mirror = EntrywiseWeighted(mirror, weights)
        before = EntrywiseWeighted(before, weights)
        entry = _in_geometry(cast(Method[Any], entry), mirror)
    diagnosis = diagnose(
        cast(MirrorMap | Method[Any], entry),
        subject.problem,
        subject.x0,
        name=Path(name).stem if str(name).endswith(".safetensors") else str(name),
        methods=None if isinstance(entry, MirrorMap) else _methods(cast(Method[Any], entry), card),
        iterations=iterations,
        oracle=oracle,
        generator=torch.Generator().manual_seed(0),
        exact_iterates=exact_iterates,
        before_learning=before,
    )
    settings = {"entry": zoo.versioned(name), **diagnosis.settings}
    diagnosis = replace(diagnosis, settings=settings)
    if isinstance(mirror, EntrywiseWeighted):
        note = {"the map": "weighted by what the gradients are relative to"}
        return replace(diagnosis, settings=diagnosis.settings | note)
    if problem != "network" or isinstance(mirror, Euclidean):  # the identity is equivariant
        return diagnosis
    family = network_family(card.name, directory)
    defects = _network_defects(cast(Method[Any], entry), before, family)
    return replace(diagnosis, equivariance=defects)


def _at_mean_features(entry: Conditioned, subject: Subject) -> Method[Any]:
    """Return the first method of a conditioned entry for the mean features of all problems.

    The theorems need the same step size for all problems.
    """
    features = subject.problem.features(subject.x0)
    means = {name: value.mean().reshape(1) for name, value in features.items()}
    method = given(entry.method, means)
    return method.first if isinstance(method, Switch) else method


def unlearned(part: Any) -> Any:
    """Return a part with the structure of a learned part and its parameters before learning.

    If a learned tensor is an argument of the constructor, the argument has its default, or is 1.
    """
    if isinstance(part, dict):
        return {name: unlearned(each) for name, each in part.items()}
    if isinstance(part, nn.Parameter):
        return nn.Parameter(torch.ones_like(part))
    if not isinstance(part, Part) or not isinstance(part, nn.Module):
        return part
    buffers = {id(buffer) for buffer in part.buffers()}
    arguments = {}
    for name, value in part.config().items():
        is_learned_tensor = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
        if is_learned_tensor and id(value) not in buffers:
            continue
        arguments[name] = unlearned(value)
    return type(part).from_config(**arguments)


def _in_geometry(method: Method[Any], mirror: MirrorMap) -> Method[Any]:
    """Return a copy of a method with another map, in both steps of accelerated descent."""
    changed = copy.deepcopy(method)
    if isinstance(changed, AMD) and changed.regulariser is changed.mirror:
        changed.regulariser = mirror
    changed.mirror = mirror
    return changed


def _methods(entry: Method[Any], card: zoo.Card) -> dict[str, Method[Any]]:
    """Return the methods in which the map of an entry runs, by name."""
    if isinstance(entry, Preconditioned):
        return {"Preconditioned": entry}
    mirror = cast(MirrorMap, entry.mirror)
    t = cast(Any, entry.t)
    if isinstance(mirror, EntrywiseWeighted):
        return {"LAMD" if isinstance(entry, AMD) else "LMD": entry}
    if isinstance(entry, AMD):
        if "descent_scale" not in card.use:
            return {"LAMD": entry}
        slower = descent(entry, card.use["descent_scale"], card.use["descent_shape"])
        return {"LAMD": entry, "LSMD": slower.double()}
    if mirror.exact:
        return {name: LEARNED[name](mirror, t) for name in DUAL_STORED}
    methods = {name: make(mirror, t) for name, make in LEARNED.items()}
    methods["Algorithm 1"] = AMD(mirror, t, storage="primal")
    return methods


def network_family(name: str, directory: Path | None) -> ProblemFamily:
    """Return the networks that an entry was learned to train, on at most ``DATA`` data points."""
    name = REPRESENTATIVE.get(name, name).removesuffix(CONTROL)
    known = {**NETWORK_RECIPES, **PRINTED_RECIPES}
    if name not in known:
        raise ValueError(
            f"{name} was not learned to train a network of the zoo ({', '.join(known)}); for a "
            "network of your own, call mirrordescent.theory.diagnose with a NetworkTraining"
        )
    family = known[name].family(directory)
    if not isinstance(family, NetworkFamily):
        return family
    problem = family.problem
    return NetworkFamily(problem.model, problem.inputs[:DATA], problem.targets[:DATA])


def _network_defects(entry: Method[Any], before: MirrorMap, family: ProblemFamily) -> Defects:
    """Measure equivariance under permutations of hidden units.

    Compares the entry before and after learning, and tied maps with untied maps that are learned
    briefly.
    """
    drawn = family.validation(1)
    problem = cast(NetworkTraining, drawn.problem)
    model = copy.deepcopy(problem.model).requires_grad_(True)
    model.load_state_dict(
        {name: leaf[0] for name, leaf in cast(dict[str, torch.Tensor], drawn.x0).items()}
    )
    generator = torch.Generator().manual_seed(0)
    example = problem.inputs.flatten(0, problem.targets.ndim - 1)[:1]
    untied = Layerwise(
        {
            name: Multipliers(torch.arange(p.numel()).reshape(p.shape))
            for name, p in model.named_parameters()
        }
    )
    tied = layerwise(model, ties="orbit", example=example)
    relearned = defects_through_learning(
        {"tied along orbits": SMD(tied, 0.1), "untied": SMD(untied, 0.1)},
        family,
        BRIEF_LEARNING,
        lambda method: network_defect(method, problem, model, generator),
    )
    precise = copy.deepcopy(problem).double()
    network = copy.deepcopy(model).double()
    shipped = {
        when: network_defect(method, precise, network, generator)
        for when, method in {
            "before learning": _in_geometry(entry, before),
            "learned": entry,
        }.items()
    }
    brief = {
        f"{kind}, {BRIEF_LEARNING.meta_steps} meta-steps": found
        for kind, found in relearned.items()
    }
    return Defects("permutations of hidden units", {"as shipped": shipped, **brief})
