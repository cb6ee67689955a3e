"""All combinations of optimiser, map and option, with the schedulers of torch.

The options are those of this library and those with which torch tests its own optimisers. Steps
must be finite. Copies, resumed runs, scaled losses and compiled steps must give the same bits.
Hooks must be called, and parameters that were moved must be followed. An error must name the option
that is refused.
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
COMPILED_SHARE = 0.1
"""Share of combinations whose step is compiled, which takes a second."""


class Case:
    """Parameters with an optimiser and a scheduler.

    The gradients depend only on the step and on the parameters.

    Args:
        make: Class of the optimiser.
        mirror: Name of the map.
        options: Options of the optimiser.
        scheduler: Name of the scheduler.
        dtype: Precision of the parameters.
    """

    def __init__(
        self, make: Any, mirror: str, options: dict[str, Any], scheduler: str, dtype: torch.dtype
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        values = [0.3 + torch.rand(shape, generator=generator) for shape in SHAPES]
        self.params = [nn.Parameter(value.to(dtype)) for value in values]
        copied: dict[str, Any] = {"lr": 0.01}
        for key, value in options.items():
            copied[key] = value.clone() if isinstance(value, Tensor) else value
        groups = [{"params": self.params[:2]}]
        self.optimizer = make(groups, mirror=MIRRORS[mirror](), **copied)
        self.optimizer.add_param_group({"params": self.params[2:]})
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.step: Callable[[], Any] = self.optimizer.step

    def set_gradients(self, k: int) -> None:
        """Set the gradient of every parameter for step k."""
        generator = torch.Generator().manual_seed(k)
        for p in self.params:
            p.grad = (p.detach() - torch.rand(p.shape, generator=generator).to(p.dtype)) * 0.5

    def steps(self, first: int, count: int) -> None:
        """Take ``count`` steps, with the gradients of step ``first`` and the following."""
        for k in range(first, first + count):
            self.set_gradients(k)
            self.step()
            if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
                self.scheduler.step(1.0)
            else:
                self.scheduler.step()

    def values(self) -> list[Tensor]:
        """Return copies of the parameters."""
        return [p.detach().clone() for p in self.params]

    def equals(self, other: Case) -> bool:
        """Tell whether the parameters have the same bits."""
        return all(map(torch.equal, self.values(), other.values()))


class Checks:
    """The checks of one combination.

    Args:
        tally: Tally of the campaign.
        name: Name of the optimiser and the map.
        make: Function that returns the case anew.
        dtype: Precision of the parameters.
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
        """Run all checks; compile only some combinations."""
        full = self.make()
        half = self.make()
        full.steps(0, 8)
        half.steps(0, 4)
        self._expect("steps are finite", all(bool(x.isfinite().all()) for x in full.values()))
        self._check_resumed(full, half)
        self._check_hooks(full)
        if self.dtype != torch.bfloat16:
            self._check_scaled(full)
        if self.tally.random.random() < COMPILED_SHARE:
            self._check_compiled(full)
        self._check_moved(half)

    def _expect(self, outcome: str, holds: bool, description: object = "it is not so") -> None:
        if holds:
            self.tally.note(self.kind, outcome)
        else:
            self.tally.fault(f"{self.name}, {outcome}", description)

    def _check_resumed(self, full: Case, half: Case) -> None:
        """A copy, and an optimiser that loads the state from a file, continue in the same way."""
        file = io.BytesIO()
        schedule_state = _storable(half.scheduler.state_dict())
        torch.save((half.optimizer.state_dict(), schedule_state, half.values()), file)
        file.seek(0)
        state, schedule_state, values = torch.load(file, weights_only=True)
        resumed = self.make()
        copied = copy.deepcopy(half)
        copied.step = copied.optimizer.step
        for p, value in zip(resumed.params, values, strict=True):
            p.data.copy_(value)
        resumed.optimizer.load_state_dict(state)
        resumed.scheduler.load_state_dict({**resumed.scheduler.state_dict(), **schedule_state})
        for name, other in (("resumed", resumed), ("a copy", copied)):
            other.steps(4, 4)
            self._expect(f"{name} is the same", other.equals(full), "ends elsewhere")

    def _check_hooks(self, full: Case) -> None:
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
        self._expect("hooks are called", called == expected and case.equals(full), called)

    def _check_scaled(self, full: Case) -> None:
        """Losses scaled by a power of two give the same steps; an infinite gradient gives none."""
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
        same = case.equals(full)
        before = case.values()
        case.set_gradients(8)
        case.params[0].grad[0] = torch.inf
        scaler.step(case.optimizer)
        skipped = all(map(torch.equal, before, case.values()))
        self._expect("scaled losses make the same steps", same and skipped)

    def _check_compiled(self, full: Case) -> None:
        """A step compiled as one graph gives the same bits.

        The step is compiled without the wrapper of the scheduler, which torch does not trace.
        """
        torch._dynamo.reset()
        case = self.make()
        step = partial(type(case.optimizer).step, case.optimizer)
        case.step = torch.compile(step, backend="aot_eager", fullgraph=True)
        case.steps(0, 8)
        self._expect("compiled is the same", case.equals(full), "ends elsewhere")

    def _check_moved(self, moved: Case) -> None:
        """A step with zero gradients keeps parameters where they were moved.

        With momentum they move on as if they had not been moved.
        """
        unmoved = copy.deepcopy(moved)
        before = moved.values()
        for case, distance in ((moved, 0.25), (unmoved, 0.0)):
            for group in case.optimizer.param_groups:
                group["weight_decay"] = 0.0
            for p in case.params:
                p.data.add_(distance)
                p.grad = torch.zeros_like(p)
            case.optimizer.step()
        if isinstance(moved.optimizer, optim.Preconditioned):
            before = unmoved.values()
        error = 0.0
        for start, value in zip(before, moved.values(), strict=True):
            if value.numel():
                error = max(error, float((start + 0.25 - value).abs().max()))
        tolerance = 0.02 if self.dtype == torch.bfloat16 else 1e-4
        self._expect("moves are followed", error < tolerance, f"undone by {error}")


def _storable(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a scheduler without functions, which torch does not store either."""
    plain = int | float | str | list | dict | None
    return {key: value for key, value in state.items() if isinstance(value, plain)}


def torch_options() -> list[dict[str, Any]]:
    """Return the options with which torch tests its own optimisers, each once."""
    from torch.testing._internal.common_optimizers import optim_db

    options: dict[str, dict[str, Any]] = {}
    for info in optim_db:
        for case in info.optim_inputs_func(device="cpu", dtype=torch.float32):
            options.setdefault(str(sorted(case.kwargs.items())), case.kwargs)
    return list(options.values())


def torch_errors() -> list[Any]:
    """Return the arguments that every optimiser must refuse by torch's tests, with the errors."""
    from torch.testing._internal.common_optimizers import get_error_inputs_for_all_optims

    return get_error_inputs_for_all_optims(torch.device("cpu"), torch.float32)


def combinations() -> list[tuple[Any, str, dict[str, Any], torch.dtype]]:
    """Return all combinations: own options in three precisions, and torch's in one."""
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    own = product(OPTIMISERS, MIRRORS, OPTIONS, dtypes)
    return [*own, *product(OPTIMISERS, MIRRORS, torch_options(), dtypes[:1])]


def run(tally: Tally) -> None:
    """Run the campaign: all combinations in random order."""
    warnings.simplefilter("ignore")
    for kind, error in product(OPTIMISERS, torch_errors()):
        _check_refused(tally, kind, error)
    grid = combinations()
    tally.random.shuffle(grid)
    for number in tally.cases():
        if number >= len(grid):
            break
        kind, mirror, options, dtype = grid[number]
        scheduler = tally.random.choice(list(SCHEDULERS))
        name = f"{kind.__name__}, {mirror}"
        description = f"{options} {dtype} {scheduler}"
        try:
            Checks(tally, name, lambda: Case(kind, mirror, options, scheduler, dtype), dtype).all()
        except (ValueError, TypeError) as error:
            message = " ".join(str(error).split())
            if any(key in message for key in (*options, "cycle_momentum")):
                tally.note(kind.__name__, f"refused: {message[:60]}")
            else:  # the message must name the option that is refused
                tally.fault(f"{name}, {type(error).__name__}", f"{description}: {error}")
        except Exception as error:
            tally.fault(f"{name}, {type(error).__name__}", f"{description}: {error}")


def _check_refused(tally: Tally, kind: Any, error: Any) -> None:
    """Check that an optimiser refuses arguments that torch expects it to refuse."""
    given = error.optimizer_error_input
    params = given.params
    if params is None:
        params = [nn.Parameter(torch.ones(1))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # one of the expected errors is a warning
            kind(params, **given.kwargs)
    except error.error_type:
        tally.note(kind.__name__, "errors that torch expects")
    except Exception as other:
        tally.fault(f"{kind.__name__}, {given.desc}", f"{type(other).__name__}: {other}")
    else:
        tally.fault(f"{kind.__name__}, {given.desc}", "was not refused")
