"""Measure the cost of a meta-step over networks: checkpointed, nested gradients, other libraries.

The convolutional networks of the experiments are trained on random images, 100 in every step. The
ratios of memory and time do not depend on this number; with 1000 images the whole graph would not
fit into memory. torchopt and higher learn the same: a number per entry for plain gradient descent,
on the same minibatches. Both keep the whole graph. They are measured only if they are installed
(`pip install -c constraints.txt -e "./experiments[bench]"`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from benchmarks.measure import Row, about, judged, paired_ratio, peak_megabytes, printed_by, ratios
from mirrordescent.learn import Checkpointed, Draw, Full, Objective
from mirrordescent.learn.network_families import NetworkFamily
from mirrordescent.learn.unrolling import Differentiation
from mirrordescent.methods import AMD, MD
from mirrordescent.mirrors import Layerwise, Multipliers, layerwise
from mirrordescent.oracles import Minibatch
from mirrordescent.problems.network_training import Networks, NetworkTraining
from mirrordescent.recipes.architectures import small_cnn
from mirrordescent.recipes.network_maps import accelerated

MINIBATCH = 100
SHAPE = (1, 14, 14)
STEP = 0.05
SIZES = ((20, 40), (4, 120))
JUDGED = (20, 40)
WAYS: dict[str, Differentiation] = {"full": Full(), "checkpointed": Checkpointed()}


def networks_to_train(count: int) -> Draw:
    """Return networks, and random images to train them on."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2000, *SHAPE, generator=generator)
    labels = torch.arange(2000) % 10
    return NetworkFamily(small_cnn(), images, labels, evaluation=MINIBATCH).draw(
        torch.arange(count)
    )


def accelerated_method() -> AMD:
    """Return the method that the experiments learn."""
    return accelerated(small_cnn, SHAPE, [1, 100], [STEP, STEP])()


def descent() -> MD:
    """Return gradient descent with a learned number per entry, x⁺ = x − t w·g, which others can
    learn too.
    """
    return MD(layerwise(small_cnn(), example=torch.zeros(1, *SHAPE)), STEP)


def meta_step(
    method: AMD | MD, draw: Draw, horizon: int, differentiation: str = "checkpointed"
) -> None:
    """Compute one meta-gradient."""
    method.zero_grad()
    objective = Objective("log_value", every=_every(horizon), differentiation=WAYS[differentiation])
    losses, _ = objective.losses(
        method, draw, horizon, 0, Minibatch(MINIBATCH), torch.Generator().manual_seed(0)
    )
    torch.autograd.backward(losses.mean())


def _every(horizon: int) -> int:
    return max(1, horizon // 12)


# Others

Loss: TypeAlias = Callable[[Networks], Tensor]
Inner: TypeAlias = Callable[[Networks, Networks], Callable[[Loss], Networks]]


def others_meta_step(inner: Inner, method: MD, draw: Draw, horizon: int) -> None:
    """Compute the meta-gradient of :func:`descent` with steps by another library."""
    method.zero_grad()
    problem = cast(NetworkTraining, draw.problem)
    generator = torch.Generator().manual_seed(0)
    x = {name: leaf.clone().requires_grad_() for name, leaf in cast(Networks, draw.x0).items()}
    rates = {
        name: STEP * each.multipliers[each.groups] for name, each in _multipliers(method).items()
    }
    step = inner(x, rates)
    looked = []
    for k in range(1, horizon + 1):
        subset = torch.randperm(problem.terms, generator=generator)[:MINIBATCH]
        images = problem.inputs[subset]
        labels = problem.targets[subset]
        x = step(partial(_total_loss, problem, images, labels))
        if k % _every(horizon) == 0 or k == horizon:
            looked.append(problem.value(x).log())
    torch.autograd.backward(torch.stack(looked).sum(0).mean())


def _total_loss(problem: NetworkTraining, images: Tensor, labels: Tensor, x: Networks) -> Tensor:
    return problem._losses(x, images, labels).mean(1).sum()


def _multipliers(method: MD) -> dict[str, Multipliers]:
    return cast(dict[str, Multipliers], cast(Layerwise, method.mirror).by_name)


def with_torchopt(x: Networks, rates: Networks) -> Callable[[Loss], Networks]:
    """Return a step of torchopt's functional optimiser, which scales gradients before plain
    descent.
    """
    torchopt = import_module("torchopt")

    def scale(gradients: Any, state: Any, **_: Any) -> tuple[Any, Any]:
        return tuple(rate * g for rate, g in zip(rates.values(), gradients, strict=True)), state

    scaling = torchopt.base.GradientTransformation(init=lambda _: (), update=scale)
    optimiser = torchopt.FuncOptimizer(torchopt.chain(scaling, torchopt.sgd(lr=1.0)))
    networks = x

    def step(loss: Loss) -> Networks:
        nonlocal networks
        moved = optimiser.step(loss(networks), tuple(networks.values()))
        networks = dict(zip(networks, moved, strict=True))
        return networks

    return step


def with_higher(x: Networks, rates: Networks) -> Callable[[Loss], Networks]:
    """Return a step of higher's differentiable SGD, with the rates in place of its own."""
    higher = import_module("higher")
    names = list(x)
    module = nn.ParameterList([nn.Parameter(leaf.detach()) for leaf in x.values()])
    plain = torch.optim.SGD([{"params": [p]} for p in module.parameters()], lr=1.0)
    functional = higher.monkeypatch(module, copy_initial_weights=False, track_higher_grads=True)
    optimiser = higher.optim.get_diff_optim(plain, module.parameters(), fmodel=functional)

    def step(loss: Loss) -> Networks:
        now = dict(zip(names, functional.parameters(), strict=True))
        optimiser.step(loss(now), override={"lr": list(rates.values())})
        return dict(zip(names, functional.parameters(), strict=True))

    return step


OTHERS: dict[str, Inner] = {"torchopt": with_torchopt, "higher": with_higher}


# What is measured, each in a process of its own


def run(kind: str, draw: Draw, horizon: int) -> Callable[[], None]:
    """Return a meta-step of a kind."""
    if kind in OTHERS:
        return partial(others_meta_step, OTHERS[kind], descent(), draw, horizon)
    if kind == "descent":
        return partial(meta_step, descent(), draw, horizon)
    return partial(meta_step, accelerated_method(), draw, horizon, kind)


def print_peak(kind: str, networks: int, horizon: int) -> None:
    """Print by how many megabytes a meta-step raises the peak, after a short one has loaded
    everything.
    """
    run(kind, networks_to_train(1), 1)()
    before = peak_megabytes()
    run(kind, networks_to_train(networks), horizon)()
    print(peak_megabytes() - before)


def print_ratio(ours: str, theirs: str, networks: int, horizon: int) -> None:
    """Print the time of our meta-step over that of theirs."""
    draw = networks_to_train(networks)
    print(paired_ratio(run(ours, draw, horizon), run(theirs, draw, horizon), repeats=2))


def rows() -> Iterator[Row]:
    """Yield ratios of memory and time."""
    fresh = partial(printed_by, "benchmarks.network_unrolling")
    for networks, horizon in SIZES:
        size = f"{networks} networks, N = {horizon}"
        for ours, theirs in (("checkpointed", "full"), *(("descent", name) for name in OTHERS)):
            label = (
                f"checkpointed / {'nested create_graph' if theirs == 'full' else theirs}, {size}"
            )
            if theirs in OTHERS and find_spec(theirs) is None:
                yield label, "not installed", "", ""
                continue
            peaks = [
                fresh("peak", kind, networks, horizon, keep_freed=False) for kind in (ours, theirs)
            ]
            time = fresh("time", ours, theirs, networks, horizon, keep_freed=True)
            judge = theirs == "full" and (networks, horizon) == JUDGED
            yield judged(f"{label}, memory", peaks[0] / peaks[1], 0.2 if judge else None, ".3f")
            yield judged(f"{label}, time", time, 1.5 if judge else None)
    long = fresh("peak", "checkpointed", 20, 360, keep_freed=False) / 1024
    yield judged(
        f"checkpointed, 20 networks, N = 360, {MINIBATCH} images a step, gigabytes", long, 4
    )


def main() -> str:
    """Measure."""
    return f"{about(__doc__)}\n{ratios(rows())}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["peak", kind, networks, horizon]:
            print_peak(kind, int(networks), int(horizon))
        case ["time", ours, theirs, networks, horizon]:
            print_ratio(ours, theirs, int(networks), int(horizon))
        case _:
            print(main())
