"""Reptile: a start from which a few gradient steps go far on every problem of a family."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Generator, Tensor, nn

from mirrordescent.files import write_whole
from mirrordescent.learn.checkpoint import RunDamaged
from mirrordescent.learn.families import ProblemFamily, draw_seeds
from mirrordescent.methods.base import Method
from mirrordescent.methods.baselines import GD
from mirrordescent.oracles import Exact
from mirrordescent.problems.base import Problem
from mirrordescent.progress import ProgressBar
from mirrordescent.trees import tree_map

Start: TypeAlias = dict[str, Tensor]


@torch.no_grad()
def reptile(
    family: ProblemFamily,
    start: Start,
    steps: int,
    *,
    batch: int = 1,
    inner_steps: int = 10,
    inner_step_size: float = 1e-2,
    epsilon: float = 0.1,
    seed: int = 0,
    checkpoint: Path | None = None,
    save_every: int = 500,
    progress: bool | None = None,
) -> Start:
    """θ ← θ + ε_k · mean_b(θ̃_b − θ), k = 0, …, K−1: move towards where gradient descent goes on random problems.

    θ̃_b is what ``inner_steps`` steps of gradient descent make of θ on a problem b; ε_k falls linearly from ``epsilon``
    to 0.

    Args:
        family: where problems come from; their own starts are not used.
        start: θ before the first step, name → tensor, without a batch dimension.
        steps: K.
        batch: problems per step, solved together.
        inner_steps, inner_step_size: of gradient descent on a problem.
        epsilon: ε_0.
        seed: of the problems.
        checkpoint: a file to keep θ in, from which an interrupted run goes on.
        save_every: steps between writing it.
        progress: show a progress bar; by default on a terminal.

    Reference: Nichol, Achiam, Schulman, arXiv:1803.02999, Algorithm 1.
    """
    if steps < 1 or inner_steps < 1 or batch < 1:
        raise ValueError(f"steps, inner_steps and batch must be at least 1, got {steps}, {inner_steps} and {batch}")
    if not 0 < epsilon <= 1:
        raise ValueError(f"epsilon must be in (0, 1], got {epsilon}")
    generator, inner = torch.Generator().manual_seed(seed), GD(inner_step_size)
    theta, done = dict(start), 0
    if checkpoint is not None and checkpoint.exists():
        theta, done = _load(checkpoint, generator)
    with ProgressBar("reptile", steps, progress) as bar:
        for k in range(done, steps):
            problem = family.draw(draw_seeds(batch, generator)).problem
            reached = _run(inner, problem, theta, batch, inner_steps)
            rate = epsilon * (1 - k / steps)
            theta = {name: torch.lerp(leaf, reached[name].mean(0), rate) for name, leaf in theta.items()}
            if checkpoint is not None and ((k + 1) % save_every == 0 or k + 1 == steps):
                _save(checkpoint, theta, generator, k + 1)
            bar.update(k + 1, f"ε = {rate:.3g}")
    return theta


def _run(method: Method[Any], problem: Problem, theta: Start, batch: int, steps: int) -> Start:
    state = method.init(tree_map(lambda leaf: leaf.expand(batch, *leaf.shape), theta), problem)
    for _ in range(steps):
        state = method.step(problem, state, Exact())
    return cast(Start, method.answer(state))


def _save(path: Path, theta: Start, generator: Generator, done: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {f"theta.{name}": leaf for name, leaf in theta.items()} | {"generator": generator.get_state()}
    write_whole(tensors, {"steps": str(done)}, path)


def _load(path: Path, generator: Generator) -> tuple[Start, int]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            done = int((file.metadata() or {})["steps"])
        generator.set_state(tensors.pop("generator"))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise RunDamaged(f"{path} cannot be resumed: {error}") from error
    return {name.removeprefix("theta."): leaf for name, leaf in tensors.items()}, done
