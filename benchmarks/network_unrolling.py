"""What a meta-step over networks costs: checkpointed, against the whole graph of nested gradients (create_graph).

The convolutional networks of the experiments on random images, each learning step on 250 of them: ratios of memory and
time do not depend on how many, and the whole graph would not fit with 1000.
"""

from __future__ import annotations

import sys
from functools import partial

import torch
from rich.table import Table

from benchmarks.measure import CONSOLE, paired_ratio, peak_megabytes, printed_by, verdict
from mirrordescent.learn import Draw, Objective
from mirrordescent.learn.networks import NetworkFamily
from mirrordescent.methods import AMD
from mirrordescent.oracles import Minibatch
from mirrordescent.problems.architectures import small_cnn
from mirrordescent.zoo.network_recipes import accelerated

MINIBATCH = 250


def setting(networks: int) -> tuple[AMD, Draw]:
    """Return the method that is learned, and networks to train."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(2000, 1, 14, 14, generator=generator), torch.arange(2000) % 10
    family = NetworkFamily(small_cnn(), images, labels, evaluation=MINIBATCH)
    return accelerated(small_cnn, (1, 14, 14), [1, 100], [0.05, 0.05])(), family.draw(torch.arange(networks))


def meta_step(method: AMD, draw: Draw, horizon: int, differentiation: str) -> None:
    """Compute one meta-gradient."""
    method.zero_grad()
    every = max(1, horizon // 12)
    objective = Objective("log_value", every=every, differentiation=differentiation)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    losses, _ = objective.losses(method, draw, horizon, 0, Minibatch(MINIBATCH), generator)
    torch.autograd.backward(losses.mean())


def print_peak(networks: int, horizon: int, differentiation: str) -> None:
    """Print by how many megabytes a meta-step raises the peak, after a short one has loaded everything."""
    meta_step(*setting(1), 1, "full")
    before = peak_megabytes()
    meta_step(*setting(networks), horizon, differentiation)
    print(peak_megabytes() - before)


def main() -> None:
    """Measure and print."""
    table = Table("ratio", "measured", "target", "", title="A meta-step over networks", title_justify="left")
    for networks, horizon in ((20, 40), (4, 120)):
        peak = partial(printed_by, "benchmarks.network_unrolling", networks, horizon, keep_freed=False)
        memory = peak("checkpointed") / peak("full")
        method, draw = setting(networks)
        time = paired_ratio(
            partial(meta_step, method, draw, horizon, "checkpointed"),
            partial(meta_step, method, draw, horizon, "full"),
            repeats=1,
        )
        label = f"checkpointed / nested create_graph, {networks} networks, N = {horizon}"
        table.add_row(f"{label}, memory", f"{memory:.3f}", "≤ 0.2", verdict(memory <= 0.2))
        table.add_row(f"{label}, time", f"{time:.2f}", "≤ 1.5", verdict(time <= 1.5))
    long = printed_by("benchmarks.network_unrolling", 4, 360, "checkpointed", keep_freed=False) / 1024
    table.add_row("4 networks, N = 360, gigabytes", f"{long:.2f}", "≤ 4", verdict(long <= 4))
    CONSOLE.print(table)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print_peak(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        main()
