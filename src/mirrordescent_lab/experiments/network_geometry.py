"""One geometry for networks of any kind, without tuning, against tuned optimisers: equal steps, equal seconds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mirrordescent import cache, zoo
from mirrordescent.files import whole
from mirrordescent_lab.contestants import (
    Contestant,
    Setting,
    adamw,
    by_hand,
    control,
    grid,
    has_soap,
    learned,
    muon,
    muon_in_single_precision,
    sgd,
    soap,
    with_power,
)
from mirrordescent_lab.experiments.result import Claim, Result, Table
from mirrordescent_lab.experiments.scales import Say, Scale
from mirrordescent_lab.recipes.spectral import ENTRY
from mirrordescent_lab.tasks import LEARNING, PROJECT, TEST, End, Task

TUNING_SEED, TEST_SEED = 1000, 2000
ADAMW, MUON, HAND, CONTROL = "AdamW", "Muon with AdamW", "set by hand", "the identity in its place"
HAND_RATES = (2e-3, 3e-3, 6e-3, 1e-2)
ONCE: list[Setting] = [(1.0, "constant")]


@dataclass(frozen=True)
class Size:
    """How large the experiment is.

    ``seeds`` are networks of every task for the contestants that claims are about, and for the others one; ``timed``
    those of the comparison at equal seconds, ``networks`` those of the two architectures of the paper. Of the tasks,
    the first ``tasks`` are run, and ``longer`` of them for several times as long.
    """

    seeds: int
    timed: int
    networks: int
    share: float
    tasks: int
    longer: tuple[str, ...]


CHEAP = ("11-layer MLP", "MLP, Fashion-MNIST", "CNN, Fashion-MNIST", "MLP with layer norms")
SIZES: dict[Scale, Size] = {
    "quick": Size(1, 1, 1, 0.05, 2, CHEAP[:1]),
    "standard": Size(3, 2, 3, 1.0, 8, CHEAP),
    "paper": Size(10, 10, 20, 1.0, 8, tuple(task.name for task in TEST)),
}


class Ledger:
    """Runs that have been made, kept in a file, so that a long experiment can be continued."""

    def __init__(self, path: Path | None, directory: Path | None, say: Say) -> None:
        self.path, self.directory, self.say = path, directory, say
        self.ends: dict[str, list[float]] = json.loads(path.read_text()) if path and path.exists() else {}

    def run(self, task: Task, contestant: Contestant, setting: Setting, seed: int, steps: int | None = None) -> End:
        """Return how a run ends, made now or before."""
        steps = steps or task.steps
        key = f"{task.name} | {contestant.name} | {setting[0]:g} {setting[1]} | {seed} | {steps}"
        if key not in self.ends:
            with muon_in_single_precision():
                end = task.train(contestant.make(*setting), seed, self.directory, steps)
            self.say(f"{key}: loss {end.loss:.4g}, {end.seconds:.1f} s")
            self.ends[key] = list(end)
            self._keep()
        return End(*self.ends[key])

    def pace(self, task: Task, ours: Contestant, theirs: Contestant) -> float:
        """Return the time of a training step of one contestant over that of another, both at a small rate."""
        key = f"{task.name} | {ours.name} / {theirs.name}"
        if key not in self.ends:
            first, second = (each.make(1e-6, "constant") for each in (ours, theirs))
            self.ends[key] = [task.pace(first, second, self.directory)]
            self.say(f"{key}: {self.ends[key][0]:.2f}")
            self._keep()
        return self.ends[key][0]

    def _keep(self) -> None:
        if self.path:
            with whole(self.path) as partial:
                partial.write_text(json.dumps(self.ends, indent=0))

    def tuned(self, task: Task, contestant: Contestant) -> Setting:
        """Return the setting with the least training loss at the end, on a network kept for tuning.

        Where the best learning rate is an end of the grid, the grid goes on there, by factors of 3.
        """
        if len(contestant.settings) == 1:
            return contestant.settings[0]

        def loss(setting: Setting) -> float:
            return _number(self.run(task, contestant, setting, TUNING_SEED).loss)

        best = min(contestant.settings, key=loss)
        rates = [rate for rate, _ in contestant.settings]
        for factor, end in ((3.0, max(rates)), (1 / 3, min(rates))):
            while best[0] == end and loss(further := (factor * best[0], best[1])) < loss(best):
                best, end = further, further[0]
        return best


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Tune all but the entry on every task, then train with all of them on networks that nothing was tuned on."""
    size = SIZES[scale]
    tasks, project, learning = (
        [_small(t, size.share) if scale == "quick" else t for t in group] for group in (TEST, PROJECT, LEARNING)
    )
    entry: Any = zoo.load(ENTRY)
    path = None if scale == "quick" else cache.directory() / f"network-geometry-{_stamp()}.json"
    ledger = Ledger(path, directory, say)
    rate = _hand_rate(ledger, learning[: size.tasks])
    contestants = [
        Contestant(ENTRY, learned(entry), ONCE),
        Contestant(HAND, by_hand(), [(rate, "linear")]),
        Contestant(ADAMW, adamw, grid((1e-3, 3e-3, 1e-2, 3e-2))),
        Contestant(MUON, muon, grid((1e-2, 3e-2, 1e-1), ("cosine", "linear"))),
        Contestant("SGD with momentum", sgd, grid((0.03, 0.1, 0.3), ("cosine",)), judged=False),
        *([Contestant("SOAP", soap, grid((3e-3, 1e-2, 3e-2), ("cosine",)), judged=False)] if has_soap() else []),
        *(Contestant(f"{ENTRY}, p = {p:g}", with_power(entry, p), ONCE, judged=p == 0) for p in (0.0, 0.25)),
        Contestant(CONTROL, control(entry), [(c, "constant") for c in (0.5, 1.0, 2.0, 4.0)]),
    ]
    result = Result("network-geometry", "One geometry for networks of any kind", {
        "scale": scale, **vars(size), "learning rate of the geometry set by hand, chosen on the learning tasks": rate,
        "tuning": "on one network a task, over learning rates and schedules; shown are others",
    })  # fmt: skip
    study = _Study(ledger, tasks[: size.tasks], contestants, size)
    study.equal_steps(result)
    study.equal_seconds(result)
    _project(ledger, project, contestants, size, result)
    study.longer(result, 4)
    if scale == "quick":
        result.claims = []
    return result


def _small(task: Task, share: float) -> Task:
    """Return a task on bundled data that takes a moment."""
    source = task.source if task.length else {"14": "digits-14"}.get(task.source[-2:], "digits-28")
    source = "digits" if task.source == "digits" else source
    return replace(task, source=source, steps=max(2, int(share * task.steps)), batch=16, evaluated=50)


def _stamp() -> str:
    """Tell one version of the entry from another."""
    numbers = json.dumps(zoo.card(ENTRY).use, sort_keys=True)
    return cache.key_of(ENTRY, numbers=numbers)[:12]


def _hand_rate(ledger: Ledger, learning: Sequence[Task]) -> float:
    """Return the one learning rate of the geometry set by hand that is best on the tasks the entry was learned on."""

    def score(rate: float) -> float:
        hand = Contestant(HAND, by_hand(), [])
        return sum(math.log(_number(ledger.run(task, hand, (rate, "linear"), TUNING_SEED).loss)) for task in learning)

    return min(HAND_RATES, key=score)


@dataclass
class _Study:
    """The tasks, and who takes part."""

    ledger: Ledger
    tasks: Sequence[Task]
    contestants: Sequence[Contestant]
    size: Size

    def equal_steps(self, result: Result) -> None:
        """Compare losses after as many steps."""
        self.chosen = {(t.name, c.name): self.ledger.tuned(t, c) for t in self.tasks for c in self.contestants}
        self.ends = {(t.name, c.name): self._runs(t, c, t.steps) for t in self.tasks for c in self.contestants}
        names = [c.name for c in self.contestants]
        rows = [
            (t.name, str(t.steps), *(_spread([e.loss for e in self.ends[t.name, n]]) for n in names))
            for t in self.tasks
        ]
        result.tables["Training loss at equal steps, mean ± standard error"] = Table(("task", "steps", *names), rows)
        rows = [
            (t.name, *(f"{statistics.mean(e.test_loss for e in self.ends[t.name, n]):.3f}" for n in names))
            for t in self.tasks
        ]
        result.tables["Test loss at equal steps"] = Table(("task", *names), rows)
        rows = [
            (t.name, *(f"{self.chosen[t.name, n][0]:g} {self.chosen[t.name, n][1]}" for n in names)) for t in self.tasks
        ]
        result.tables["Settings chosen"] = Table(("task", *names), rows)
        rows = [
            (n, *_log_ratio([self._losses(t, ENTRY) for t in self.tasks], [self._losses(t, n) for t in self.tasks])[1:])
            for n in names[1:]
        ]
        result.tables[f"Mean log loss of {ENTRY} minus that of others, with a 95 % interval"] = Table(
            ("against", "difference", "interval"), rows
        )
        self._claims(result)

    def _claims(self, result: Result) -> None:
        count = len(self.tasks)
        for rival, wanted in ((ADAMW, count), (MUON, 6 * count // 8)):
            won = [t.name for t in self.tasks if self._mean(t, ENTRY) <= self._mean(t, rival)]
            lost = [
                f"{t.name} {self._mean(t, ENTRY):.4g} against {self._mean(t, rival):.4g}"
                for t in self.tasks
                if t.name not in won
            ]
            result.claims.append(Claim(
                f"untuned, {ENTRY} is not behind tuned {rival} at equal steps on at least {wanted} of {count} tasks",
                len(won) >= wanted, f"{len(won)} of {count}{'; behind on ' + ', '.join(lost) if lost else ''}",
            ))  # fmt: skip
        powers = [c.name for c in self.contestants if ", p = " in c.name]
        best = min(
            powers,
            key=lambda name: _log_ratio(
                [self._losses(t, name) for t in self.tasks], [self._losses(t, ADAMW) for t in self.tasks]
            )[0],
        )
        for rival, called in (
            (HAND, "the geometry set by hand at one learning rate"),
            (best, f"the best fixed power ({best})"),
            (CONTROL, "the identity in place of its maps, with its learning rate tuned"),
        ):
            mean, difference, interval = _log_ratio(
                [self._losses(t, ENTRY) for t in self.tasks], [self._losses(t, rival) for t in self.tasks]
            )
            result.claims.append(
                Claim(
                    f"{ENTRY} has a lower mean log loss than {called}",
                    mean < 0,
                    f"difference {difference}, 95 % interval {interval}",
                )
            )

    def longer(self, result: Result, times: int) -> None:
        """Compare after several times as many steps as the entry was learned for, on one network a task."""
        rows, won = [], 0
        by_name = {c.name: c for c in self.contestants}
        for task in (task for task in self.tasks if task.name in self.size.longer):
            ours, theirs = (
                self.ledger.run(task, by_name[n], self.chosen[task.name, n], TEST_SEED, times * task.steps).loss
                for n in (ENTRY, ADAMW)
            )
            won += ours <= theirs
            rows.append((task.name, str(times * task.steps), f"{ours:.4f}", f"{theirs:.4f}"))
        result.tables[f"Training loss after {times} times as many steps, one network"] = Table(
            ("task", "steps", ENTRY, ADAMW), rows
        )
        result.claims.append(
            Claim(
                f"{ENTRY} is ahead of tuned AdamW in runs {times} times as long",
                won == len(rows),
                f"on {won} of {len(rows)} tasks",
            )
        )

    def equal_seconds(self, result: Result) -> None:
        """Give AdamW as many steps as it can take in the time of the entry, with its schedule stretched."""
        rows, won = [], 0
        by_name = {c.name: c for c in self.contestants}
        for task in self.tasks:
            ours = self.ends[task.name, ENTRY][: self.size.timed]
            ratio = self.ledger.pace(task, by_name[ENTRY], by_name[ADAMW])
            steps = max(task.steps, round(ratio * task.steps))
            longer = self._runs(task, by_name[ADAMW], steps, self.size.timed)
            won += statistics.mean(e.loss for e in ours) <= statistics.mean(e.loss for e in longer)
            rows.append(
                (
                    task.name,
                    f"{ratio:.2f}",
                    str(steps),
                    _spread([e.loss for e in ours]),
                    _spread([e.loss for e in longer]),
                )
            )
        header = ("task", "time of a training step, to AdamW's", "steps of AdamW in the same time", ENTRY, ADAMW)
        result.tables["Training loss at equal seconds"] = Table(header, rows)
        wanted = 6 * len(rows) // 8
        result.claims.append(
            Claim(
                f"at equal seconds {ENTRY} is ahead of tuned AdamW on at least {wanted} of {len(rows)} tasks",
                won >= wanted,
                f"on {won}",
            )
        )

    def _runs(self, task: Task, contestant: Contestant, steps: int, count: int | None = None) -> list[End]:
        setting = self.chosen[task.name, contestant.name]
        count = count or (self.size.seeds if contestant.judged else 1)
        return [self.ledger.run(task, contestant, setting, TEST_SEED + i, steps) for i in range(count)]

    def _losses(self, task: Task, name: str) -> list[float]:
        return [_number(end.loss) for end in self.ends[task.name, name]]

    def _mean(self, task: Task, name: str) -> float:
        return statistics.mean(self._losses(task, name))


def _project(
    ledger: Ledger, tasks: Sequence[Task], contestants: Sequence[Contestant], size: Size, result: Result
) -> None:
    """Train the two networks of the paper as long as there."""
    wanted = {"MLP": (0.034, 0.976), "CNN": (0.085, 0.973)}
    adam = Contestant(ADAMW, adamw, grid((1e-2, 2e-2, 5e-2), ("cosine",)))
    rows = []
    for task in tasks:
        for contestant in (*contestants[:2], adam):
            setting = ledger.tuned(task, contestant)
            ends = [ledger.run(task, contestant, setting, TEST_SEED + i) for i in range(size.networks)]
            loss, accuracy = (statistics.mean(each) for each in ([e.loss for e in ends], [e.accuracy for e in ends]))
            rows.append((task.name, contestant.name, _spread([e.loss for e in ends]), f"{accuracy:.2%}"))
            if contestant.name == ENTRY:
                bound, share = wanted[task.name]
                result.claims.append(Claim(
                    f"{task.name} of the paper: loss at most {bound:g} and accuracy at least {share:.1%}",
                    loss <= bound and accuracy >= share,
                    f"{_spread([e.loss for e in ends])}, {accuracy:.2%}, {len(ends)} networks",
                ))  # fmt: skip
    result.tables["The networks of the paper"] = Table(("network", "optimiser", "training loss", "test accuracy"), rows)


def _log_ratio(ours: list[list[float]], theirs: list[list[float]]) -> tuple[float, str, str]:
    """Return the mean over tasks of log(ours/theirs), and its 95 % interval over the networks of these tasks."""
    tasks = zip(ours, theirs, strict=True)
    logs = [[math.log(a / b) for a, b in zip(x, y, strict=False)] for x, y in tasks]  # pairs of the same network
    mean = statistics.mean(map(statistics.mean, logs))
    if min(map(len, logs)) < 2:
        return mean, f"{mean:+.3f}", "one network"
    error = 1.96 * math.sqrt(sum(statistics.variance(each) / len(each) for each in logs)) / len(logs)
    return mean, f"{mean:+.3f}", f"{mean - error:+.3f} … {mean + error:+.3f}"


def _spread(losses: list[float]) -> str:
    if len(losses) < 2:
        return f"{losses[0]:.4f}"
    return f"{statistics.mean(losses):.4f} ± {statistics.stdev(losses) / len(losses) ** 0.5:.4f}"


def _number(loss: float) -> float:
    return loss if math.isfinite(loss) else 1e3
