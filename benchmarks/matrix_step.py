"""Measure the cost of a step with matrix geometry: Preconditioned against Muon and AdamW.

The first table shows the step alone, on the matrices of a network, against three others: torch's
Muon, which computes in bfloat16; five Newton–Schulz steps in float32 with the same momentum, where
matrices of one shape are batched; and fused AdamW. Muon takes matrices only, so that convolutions
are flattened for it. The second table shows a whole training step with all tensors of a network in
the learned geometry, second moments included, against the same step with AdamW's default
implementation, tensor by tensor, and with fused AdamW.

Processors without instructions for bfloat16 are slow at it. If layers are wide and minibatches
small, the polar factor of a layer takes as much arithmetic as its forward and backward pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from benchmarks.measure import (
    about,
    all_printed_by,
    judged,
    paired_ratio,
    printed_by,
    quick,
    table,
    verdict,
)
from mirrordescent import optim
from mirrordescent.mirrors import SpectralPower
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.training_tasks import TEST, Task

RATE = 1e-9
Shapes = list[tuple[int, int]]
WIDTHS = (784, 50, 40, 30, 20, 10)
RESNET = [
    (c * k, 9 * c * i)
    for c in (16,)
    for k, i in ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4), (8, 8))
]
SETS: dict[str, Shapes] = {
    "MLP": [(out, into) for into, out in pairwise(WIDTHS)],
    "ResNet-18, a quarter as wide": [RESNET[0]] * 4
    + [s for i in (1, 3, 5) for s in (RESNET[i], *[RESNET[i + 1]] * 3)],
    "transformer, 4 layers of 128": [
        shape for _ in range(4) for shape in (*[(128, 128)] * 4, (512, 128), (128, 512))
    ],
}
TARGET = 0.8
WHOLE_TARGET = 1.3


def matrices(name: str) -> list[nn.Parameter]:
    """Return parameters with gradients."""
    generator = torch.Generator().manual_seed(0)
    tensors = [nn.Parameter(0.1 * torch.randn(shape, generator=generator)) for shape in SETS[name]]
    for p in tensors:
        p.grad = torch.randn(p.shape, generator=generator)
    return tensors


class Batched(Optimizer):
    """Momentum and five Newton–Schulz steps in float32, matrices of one shape at once."""

    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.momenta = [torch.zeros_like(p) for p in params]
        self.groups: dict[torch.Size, list[int]] = {}
        for i, p in enumerate(params):
            self.groups.setdefault(p.shape, []).append(i)

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Take one step."""
        params: list[Tensor] = self.param_groups[0]["params"]
        gradients = [p.grad for p in params]
        torch._foreach_lerp_(self.momenta, gradients, 0.05)
        looking = torch._foreach_lerp(gradients, self.momenta, 0.95)
        for shape, together in self.groups.items():
            X = torch.stack([looking[i] for i in together])
            X = X.mT if shape[0] > shape[1] else X
            X = X / X.norm(dim=(-2, -1), keepdim=True)
            for _ in range(5):
                A = X @ X.mT
                X = torch.baddbmm(
                    X, torch.baddbmm(A, A, A, beta=-4.775, alpha=2.0315), X, beta=3.4445
                )
            X = X.mT if shape[0] > shape[1] else X
            for i, d in zip(together, X, strict=True):
                params[i].add_(d, alpha=-RATE)


def OURS(p: list[nn.Parameter]) -> Optimizer:
    """Return the library's optimiser with polar factors."""
    return optim.Preconditioned(p, RATE, SpectralPower(0.0, products=4), nonfinite=None, fused=True)


THEIRS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "torch's Muon": lambda p: torch.optim.Muon(p, RATE),
    "Newton–Schulz in float32": lambda p: Batched(p, RATE),
    "fused AdamW": lambda p: AdamW(p, RATE, fused=True),
}


def print_ratio(rival: str, name: str) -> None:
    """Print the time of our step over that of another optimiser."""
    ours = OURS(matrices(name))
    theirs = THEIRS[rival](matrices(name))
    many = 1 if name != "MLP" else 20

    def repeated(optimiser: Optimizer) -> None:
        for _ in range(many):
            optimiser.step()

    print(
        paired_ratio(
            partial(repeated, ours), partial(repeated, theirs), repeats=3 if quick() else 5
        )
    )


def print_whole(name: str) -> None:
    """Print the time of a training step of a task with our optimiser over that with AdamW, fused
    and by default.
    """
    task = next(task for task in TEST if task.name == name)

    def training(make: Callable[[nn.Module], Optimizer]) -> Callable[[], None]:
        torch.manual_seed(0)
        model = task.model()
        optimiser = make(model)
        inputs, targets = _examples(task)

        def run() -> None:
            for _ in range(3):
                optimiser.zero_grad()
                torch.autograd.backward(
                    nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
                )
                optimiser.step()

        return run

    ours = training(
        lambda model: optim.Preconditioned(
            model.named_parameters(), RATE, ENTRY, nonfinite=None, fused=True
        )
    )
    for fused in (True, None):
        print(
            paired_ratio(
                ours,
                training(lambda model, f=fused: AdamW(model.parameters(), RATE, fused=f)),
                repeats=15,
            )
        )


def _examples(task: Task) -> tuple[Tensor, Tensor]:
    """Return a minibatch of noise: time does not depend on what is in the images."""
    if task.length:
        return torch.randint(90, (task.batch, task.length)), torch.randint(
            90, (task.batch, task.length)
        )
    side = 14 if task.source.endswith("-14") else 28
    return torch.rand(task.batch, 1, side, side), torch.randint(10, (task.batch,))


def steps() -> Iterator[tuple[str, ...]]:
    """Yield ratios of times of steps alone."""
    for rival in THEIRS:
        found = [
            printed_by("benchmarks.matrix_step", "ratio", rival, name, keep_freed=True)
            for name in SETS
        ]
        goal = ("", "") if "AdamW" in rival else (f"≤ {TARGET}", verdict(max(found) <= TARGET))
        yield rival, *(f"{ratio:.2f}" for ratio in found), *goal


def whole() -> Iterator[tuple[str, ...]]:
    """Yield ratios of times of training steps."""
    for task in TEST[:1] if quick() else TEST:
        fused, default = all_printed_by(
            "benchmarks.matrix_step", "whole", task.name, keep_freed=True
        )
        yield (
            *judged(f"{task.name}, {task.batch} examples", default, WHOLE_TARGET),
            f"{fused:.2f}",
            verdict(fused <= WHOLE_TARGET),
        )


def main() -> str:
    """Measure."""
    alone = table(("time of a step, to that of", *SETS, "target", ""), steps())
    steps_of_networks = table(
        ("whole training step, to that with", "AdamW", "target", "", "fused AdamW", ""), whole()
    )
    return f"{about(__doc__)}\n{alone}\n{steps_of_networks}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ratio", rival, name]:
            print_ratio(rival, name)
        case ["whole", name]:
            print_whole(name)
        case _:
            print(main())
