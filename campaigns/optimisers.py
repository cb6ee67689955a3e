"""Every optimiser × map × option, ours and those that torch tries its own with, and every scheduler
of torch.

Steps are finite; copies, resumed runs, scaled losses and compiled steps are the same bits; hooks
are called; moves are followed. What is refused is refused by its name.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from campaigns.tally import Tally
from mirrordescent import optim
from mirrordescent.mirrors import (
    Diagonal,
    HyperbolicEntropy,
    MirrorMap,
    Multipliers,
    NegativeEntropy,
    PNorm,
    Spline,
    SquaredPNorm,
)

OPTIMISERS = (optim.MD, optim.SMD, optim.AMD, optim.ASMD, optim.Preconditioned)
MIRRORS: dict[str, Callable[[], MirrorMap | None]] = {
    "none": lambda: None,
    "diagonal": lambda: Diagonal(2.0),
    "multipliers": lambda: Multipliers(torch.tensor(0)),
    "spline": lambda: Spline(torch.tensor(0)),
    "hyperbolic": HyperbolicEntropy,
    "entropy": NegativeEntropy,
    "p-norm": lambda: PNorm(1.5),
    "squared p-norm": lambda: SquaredPNorm(1.5),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"lr": torch.tensor(0.01)},
    {"weight_decay": 0.1},
    {"weight_decay": optim.Decoupled(0.1)},
    {"maximize": True},
    {"foreach": False},
    {"fused": False},
    {"max_grad_norm": 0.5},
    {"nonfinite": "skip"},
    {"nonfinite": None},
    {"dual_dtype": torch.float64},
    {"t": lambda k: 1 / k},
]
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "constant": lr_scheduler.ConstantLR,
    "linear": lr_scheduler.LinearLR,
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 20),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "function": lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (k + 1)),
    "factors": lambda o: lr_scheduler.MultiplicativeLR(o, lambda k: 0.9),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.01, total_steps=50),
    "one cycle of rates": lambda o: lr_scheduler.OneCycleLR(
        o, 0.01, total_steps=50, cycle_momentum=False
    ),
    "cycles": lambda o: lr_scheduler.CyclicLR(o, 1e-3, 0.01, 3),
    "cycles of rates": lambda o: lr_scheduler.CyclicLR(o, 1e-3, 0.01, 3, cycle_momentum=False),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "one after another": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}
SHAPES = [(3, 4), (4,), (), (2, 3, 2), (0, 3)]
COMPILED = 0.1  # of all combinations, since compiling takes a second


class Case:
    """Parameters, an optimiser and a scheduler, stepped along gradients that depend on k alone and
    where they are.
    """

    def __init__(
        self, make: Any, mirror: str, options: dict[str, Any], scheduler: str, dtype: torch.dtype
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.params = [
            nn.Parameter((0.3 + torch.rand(s, generator=generator)).to(dtype)) for s in SHAPES
        ]
        options = {
            key: value.clone() if isinstance(value, Tensor) else value
            for key, value in options.items()
        }
        self.optimizer = make(
            [{"params": self.params[:2]}], mirror=MIRRORS[mirror](), **{"lr": 0.01, **options}
        )
        self.optimizer.add_param_group({"params": self.params[2:]})
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.step: Callable[[], Any] = self.optimizer.step

    def pull(self, k: int) -> None:
        """Give every parameter its k-th gradient."""
        generator = torch.Generator().manual_seed(k)
        for p in self.params:
            p.grad = (p.detach() - torch.rand(p.shape, generator=generator).to(p.dtype)) * 0.5

    def steps(self, first: int, count: int) -> None:
        """Take some steps."""
        for k in range(first, first + count):
            self.pull(k)
            self.step()
            self.scheduler.step(
                *([1.0] if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau) else [])
            )

    def numbers(self) -> list[Tensor]:
        """Return copies of the parameters."""
        return [p.detach().clone() for p in self.params]

    def ends_like(self, other: Case) -> bool:
        """Tell whether the parameters have the same bits."""
        return all(map(torch.equal, self.numbers(), other.numbers()))


class Checks:
    """What is tried with one combination.

    Args:
        tally: where it is noted.
        name: of the optimiser and the map.
        make: makes the case anew.
        dtype: of the parameters.
    """

    def __init__(
        self, tally: Tally, name: str, make: Callable[[], Case], dtype: torch.dtype
    ) -> None:
        self.tally = tally
        self.name = name
        self.make = make
        self.dtype = dtype
        self.kind = name.partition(",")[0]

    def all(self) -> None:
        """Try everything; of what takes a second, some."""
        whole = self.make()
        cut = self.make()
        whole.steps(0, 8)
        cut.steps(0, 4)
        self._expect("steps are finite", all(bool(x.isfinite().all()) for x in whole.numbers()))
        self._resumed(whole, cut)
        self._hooks(whole)
        if self.dtype != torch.bfloat16:
            self._scaled(whole)
        if self.tally.random.random() < COMPILED:
            self._compiled(whole)
        self._moved(cut)

    def _expect(self, outcome: str, holds: bool, otherwise: object = "it is not so") -> None:
        if holds:
            self.tally.note(self.kind, outcome)
        else:
            self.tally.fault(f"{self.name}, {outcome}", otherwise)

    def _resumed(self, whole: Case, cut: Case) -> None:
        """A copy, and another optimiser that loads the state from a file, go on alike."""
        file = io.BytesIO()
        torch.save(
            (cut.optimizer.state_dict(), _plain(cut.scheduler.state_dict()), cut.numbers()), file
        )
        file.seek(0)
        state, schedule, numbers = torch.load(file, weights_only=True)
        resumed = self.make()
        copied = copy.deepcopy(cut)
        copied.step = copied.optimizer.step
        for p, x in zip(resumed.params, numbers, strict=True):
            p.data.copy_(x)
        resumed.optimizer.load_state_dict(state)
        resumed.scheduler.load_state_dict({**resumed.scheduler.state_dict(), **schedule})
        for what, other in (("resumed", resumed), ("a copy", copied)):
            other.steps(4, 4)
            self._expect(f"{what} is the same", other.ends_like(whole), "ends elsewhere")

    def _hooks(self, whole: Case) -> None:
        """All hooks are called, and change nothing."""
        called: list[str] = []
        case = self.make()
        optimizer = case.optimizer
        optimizer.register_step_pre_hook(lambda *_: called.append("before a step"))
        optimizer.register_step_post_hook(lambda *_: called.append("after a step"))
        optimizer.register_state_dict_post_hook(lambda *_: called.append("state"))
        optimizer.register_load_state_dict_post_hook(lambda *_: called.append("load"))
        case.steps(0, 8)
        optimizer.load_state_dict(optimizer.state_dict())
        expected = ["before a step", "after a step"] * 8 + ["state", "load"]
        self._expect("hooks are called", called == expected and case.ends_like(whole), called)

    def _scaled(self, whole: Case) -> None:
        """Losses scaled by a power of two make the same steps, and one with an infinity
        makes none.
        """
        case = self.make()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        scaler.scale(torch.ones(()))

        def step() -> None:
            for p in case.params:
                p.grad = p.grad * scaler.get_scale()
            scaler.step(case.optimizer)
            scaler.update()

        case.step = step
        case.steps(0, 8)
        same = case.ends_like(whole)
        before = case.numbers()
        case.pull(8)
        case.params[0].grad[0] = torch.inf
        scaler.step(case.optimizer)
        self._expect(
            "scaled losses make the same steps",
            same and all(map(torch.equal, before, case.numbers())),
        )

    def _compiled(self, whole: Case) -> None:
        """Compiled in one piece; without what a scheduler wraps around a step, which torch does not
        trace.
        """
        torch._dynamo.reset()
        case = self.make()
        case.step = torch.compile(
            partial(type(case.optimizer).step, case.optimizer), backend="aot_eager", fullgraph=True
        )
        case.steps(0, 8)
        self._expect("compiled is the same", case.ends_like(whole), "ends elsewhere")

    def _moved(self, cut: Case) -> None:
        """Zero gradients leave parameters where somebody has put them; or move them as if nobody
        had, by momentum.
        """
        other = copy.deepcopy(cut)
        before = cut.numbers()
        for case, distance in ((cut, 0.25), (other, 0.0)):
            for group in case.optimizer.param_groups:
                group["weight_decay"] = 0.0
            for p in case.params:
                p.data.add_(distance)
                p.grad = torch.zeros_like(p)
            case.optimizer.step()
        momentum = isinstance(cut.optimizer, optim.Preconditioned)
        expected = [x + 0.25 for x in (other.numbers() if momentum else before)]
        pairs = zip(expected, cut.numbers(), strict=True)
        far = max(float((x - y).abs().max()) if x.numel() else 0.0 for x, y in pairs)
        small = 0.02 if self.dtype == torch.bfloat16 else 1e-4
        self._expect("moves are followed", far < small, f"undone by {far}")


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """Return what of the state of a scheduler can be stored without code, as torch itself leaves
    out functions.
    """
    return {
        key: value
        for key, value in state.items()
        if isinstance(value, int | float | str | list | dict | None)
    }


def of_torch() -> list[dict[str, Any]]:
    """Return the options that torch tries its own optimisers with, each once."""
    from torch.testing._internal.common_optimizers import optim_db

    found: dict[str, dict[str, Any]] = {}
    for info in optim_db:
        for each in info.optim_inputs_func(device="cpu", dtype=torch.float32):
            found.setdefault(str(sorted(each.kwargs.items())), each.kwargs)
    return list(found.values())


def errors_of_torch() -> list[Any]:
    """Return what torch expects every optimiser to refuse, with the error."""
    from torch.testing._internal.common_optimizers import get_error_inputs_for_all_optims

    return get_error_inputs_for_all_optims(torch.device("cpu"), torch.float32)


def combinations() -> list[tuple[Any, str, dict[str, Any], torch.dtype]]:
    """Return all of them: our options in three types, and torch's in one."""
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    ours = product(OPTIMISERS, MIRRORS, OPTIONS, dtypes)
    return [*ours, *product(OPTIMISERS, MIRRORS, of_torch(), dtypes[:1])]


def run(tally: Tally) -> None:
    """Go through all combinations, in random order."""
    warnings.simplefilter("ignore")
    for make, error in product(OPTIMISERS, errors_of_torch()):
        try:
            given = error.optimizer_error_input
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # one of them is a warning
                make(
                    given.params if given.params is not None else [nn.Parameter(torch.ones(1))],
                    **given.kwargs,
                )
            tally.fault(f"{make.__name__}, {given.desc}", "was not refused")
        except error.error_type:
            tally.note(make.__name__, "errors that torch expects")
        except Exception as other:
            tally.fault(f"{make.__name__}, {given.desc}", f"{type(other).__name__}: {other}")
    grid = combinations()
    tally.random.shuffle(grid)
    for number in tally.cases():
        if number >= len(grid):
            break
        make, mirror, options, dtype = grid[number]
        scheduler = tally.random.choice(list(SCHEDULERS))
        name = f"{make.__name__}, {mirror}"
        try:
            Checks(tally, name, lambda: Case(make, mirror, options, scheduler, dtype), dtype).all()
        except (ValueError, TypeError) as error:
            if any(key in str(error) for key in (*options, "cycle_momentum")):
                tally.note(make.__name__, f"refused: {' '.join(str(error).split())[:60]}")
            else:  # what is refused has to be named
                tally.fault(
                    f"{name}, {type(error).__name__}", f"{options} {dtype} {scheduler}: {error}"
                )
        except Exception as error:
            tally.fault(
                f"{name}, {type(error).__name__}", f"{options} {dtype} {scheduler}: {error}"
            )
