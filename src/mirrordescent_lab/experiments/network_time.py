"""The appendix on time: networks trained one by one through ``torch.optim``, against the clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer

from mirrordescent import optim
from mirrordescent.data.splits import Split
from mirrordescent.kernels import BuildError, library
from mirrordescent.methods import SMD
from mirrordescent_lab.architectures import initialised
from mirrordescent_lab.experiments.learned_networks import CAPPED, LMD, names_in, printed
from mirrordescent_lab.experiments.networks import (
    ADAM_GRID,
    PAPER_ADAM,
    PAPER_SGD,
    SIZES,
    TEST_SEED,
    TUNING_SEED,
    Architecture,
    Size,
    Source,
    images_of,
    source_for,
)
from mirrordescent_lab.experiments.result import Claim, Curve, Panel, Result
from mirrordescent_lab.experiments.scales import Say, Scale
from mirrordescent_lab.experiments.training import LOSS, TEST_ACCURACY, panels

Make = Callable[[nn.Module], Optimizer]
FASTEST: Any = {"fused": True}


def run(architecture: Architecture, scale: Scale, directory: Path | None, say: Say) -> Result:
    """Train with the learned methods, and with SGD and Adam as in the paper and tuned; evaluation is off the clock."""
    size, source = SIZES[scale], source_for(scale, directory)
    task = _Task(architecture, size, source, directory)
    rate = min(ADAM_GRID, key=lambda lr: task.final_loss(_adam(lr)))
    contestants: dict[str, Make] = {
        **_learned(architecture.entry),
        f"SGD ({PAPER_SGD:g})": lambda model: SGD(model.parameters(), PAPER_SGD, **FASTEST),
        f"Adam ({PAPER_ADAM:g})": _adam(PAPER_ADAM),
        f"tuned Adam ({rate:g})": _adam(rate),
    }
    settings = {"scale": scale, "data": source, **vars(size), "batch": task.batch, "steps": task.steps}
    result = Result(f"{architecture.name}-time", f"{architecture.title}, against time", settings)
    runs = {}
    for name, make in contestants.items():
        runs[name] = task.curves(name, make)
        say(f"{name}: loss {float(runs[name][LOSS].values[-1].mean()):.4g} in {runs[name][LOSS].seconds[-1]:.2f} s")
    result.panels = panels(list(runs.values()), against="seconds")
    if scale != "quick":
        result.claims = [*_on_pace(result.panels[LOSS]), *at_the_same_second(result.panels)]
    return result


def _adam(lr: float) -> Make:
    return lambda model: Adam(model.parameters(), lr, **FASTEST)


def _learned(entry: str) -> dict[str, Make]:
    """Return the methods of an entry as optimisers."""
    descent = cast(SMD | None, printed(f"{entry}-printed").get(LMD))
    fastest: Any = {"lr": 1.0, "nonfinite": None, **(FASTEST if _can_compile() else {})}
    made: dict[str, Make] = {CAPPED: lambda model: optim.AMD(model.named_parameters(), mirror=entry, **fastest)}
    if descent is not None:
        made[LMD] = lambda model: optim.SMD(model.named_parameters(), mirror=descent.mirror, t=descent.t, **fastest)
    return made


def _can_compile() -> bool:
    try:
        return bool(library())
    except BuildError:
        return False


class _Task:
    """Data, and training on it."""

    def __init__(self, architecture: Architecture, size: Size, source: Source, directory: Path | None) -> None:
        (images, self.labels), (test, self.test_labels) = (
            images_of(source, part, directory) for part in get_args(Split)
        )
        self.images, self.test = architecture.prepare(images), architecture.prepare(test)
        self.model, self.size = architecture.model, size
        self.batch = min(architecture.batch, len(self.labels) // 4)
        self.epochs = architecture.epochs
        self.steps = self.epochs * len(self.labels) // self.batch

    def curves(self, name: str, make: Make) -> dict[str, Curve]:
        """Train all networks, one after the other, and return loss and test accuracy along the way."""
        every = max(1, self.steps // self.size.looks)
        looks = [k for k in range(self.steps + 1) if k % every == 0 or k == self.steps]
        found = [self.train(make, TEST_SEED + i, looks) for i in range(self.size.networks)]
        seconds = torch.tensor([[look[0] for look in each] for each in found]).mean(0).tolist()
        return {
            quantity: Curve(name, looks, seconds, torch.tensor([[look[i] for look in each] for each in found]).T)
            for i, quantity in ((1, LOSS), (2, TEST_ACCURACY))
        }

    def final_loss(self, make: Make) -> float:
        """Return the mean loss at the end over the networks that settings are chosen on."""
        ends = [self.train(make, TUNING_SEED + i, [self.steps])[-1][1] for i in range(self.size.tuning_networks)]
        return float(torch.tensor(ends).nan_to_num(nan=torch.inf).mean())

    def train(self, make: Make, seed: int, looks: list[int]) -> list[tuple[float, float, float]]:
        """Train one network, and return seconds, loss and test accuracy at some counts of steps."""
        model = initialised(self.model, seed)
        generator = torch.Generator().manual_seed(seed)
        batches = torch.cat([torch.randperm(len(self.labels), generator=generator) for _ in range(self.epochs)])
        optimiser, seconds, seen = make(model), 0.0, []
        for k in range(self.steps + 1):
            if k in looks:
                seen.append((seconds, *self._look(model)))
            if k == self.steps:
                break
            batch = batches[k * self.batch : (k + 1) * self.batch]
            inputs, labels = self.images[batch], self.labels[batch]
            began = perf_counter()
            optimiser.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(inputs), labels))
            optimiser.step()
            seconds += perf_counter() - began
        return seen

    @torch.no_grad()
    def _look(self, model: nn.Module) -> tuple[float, float]:
        loss = F.cross_entropy(model(self.images[: self.size.evaluated]), self.labels[: self.size.evaluated])
        accuracy = (model(self.test).argmax(1) == self.test_labels).float().mean()
        return float(loss), float(accuracy)


def _on_pace(loss: Panel) -> list[Claim]:
    pace = {curve.name: curve.seconds[-1] / curve.iterations[-1] for curve in loss.curves}
    measured = ", ".join(f"{name} {1000 * seconds:.2f} ms" for name, seconds in pace.items())
    known = ((LMD, "SGD"), (CAPPED, "Adam")) if LMD in names_in(loss) else ((CAPPED, "Adam"),)
    pairs = ((loss[ours].name, loss[theirs].name) for ours, theirs in known)
    return [
        Claim(f"a step of {ours} takes at most 1.1 times as long as one of {theirs}",
              pace[ours] <= 1.1 * pace[theirs], measured)
        for ours, theirs in pairs
    ]  # fmt: skip


def at_the_same_second(panels: dict[str, Panel]) -> list[Claim]:
    """Compare capped LAMD with Adam when the first of the two has taken its last step."""
    claims = []
    for rival in ("Adam", "tuned Adam"):
        for quantity, sign in ((LOSS, 1), (TEST_ACCURACY, -1)):
            ours, theirs = panels[quantity]["capped LAMD"], panels[quantity][rival]
            moment = min(ours.seconds[-1], theirs.seconds[-1])
            found, other = (_at(curve, moment) for curve in (ours, theirs))
            difference = found - other
            error = 1.96 * float(difference.std()) / len(difference) ** 0.5
            claims.append(
                Claim(
                    f"after {moment:.2f} s, {quantity}: capped LAMD is ahead of {theirs.name}, beyond 95 %",
                    sign * float(difference.mean()) + error < 0,
                    f"capped LAMD {float(found.mean()):.4f}, {theirs.name} {float(other.mean()):.4f}, "
                    f"difference {float(difference.mean()):+.4f} ± {error:.4f} over {len(difference)} networks",
                )
            )
    return claims


def _at(curve: Curve, moment: float) -> Tensor:
    """Return every run's value at a moment, interpolated linearly."""
    after = min(sum(second < moment for second in curve.seconds), len(curve.seconds) - 1)
    start, end = curve.seconds[after - 1], curve.seconds[after]
    share = min(1.0, (moment - start) / (end - start))
    return torch.lerp(curve.values[after - 1].double(), curve.values[after].double(), share)
