"""Every optimiser × map × option: steps are finite, copies and resumed runs are the same bits, moves are followed."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
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
)  # fmt: skip

OPTIMISERS = (optim.MD, optim.SMD, optim.AMD, optim.ASMD)
MIRRORS: dict[str, Callable[[], MirrorMap | None]] = {
    "none": lambda: None, "diagonal": lambda: Diagonal(2.0), "multipliers": lambda: Multipliers(torch.tensor(0)),
    "spline": lambda: Spline(torch.tensor(0)), "hyperbolic": HyperbolicEntropy, "entropy": NegativeEntropy,
    "p-norm": lambda: PNorm(1.5), "squared p-norm": lambda: SquaredPNorm(1.5),
}  # fmt: skip
OPTIONS: list[dict[str, Any]] = [
    {}, {"lr": torch.tensor(0.01)}, {"weight_decay": 0.1}, {"weight_decay": optim.Decoupled(0.1)}, {"maximize": True},
    {"foreach": False}, {"fused": False}, {"max_grad_norm": 0.5}, {"nonfinite": "skip"}, {"nonfinite": None},
    {"dual_dtype": torch.float64}, {"t": lambda k: 1 / k},
]  # fmt: skip
SCHEDULERS: list[Callable[[Any], Any]] = [
    lambda o: lr_scheduler.StepLR(o, 2), lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    lambda o: lr_scheduler.CosineAnnealingLR(o, 10), lambda o: lr_scheduler.LinearLR(o),
    lambda o: lr_scheduler.OneCycleLR(o, 0.01, total_steps=50, cycle_momentum=False),
    lambda o: lr_scheduler.CyclicLR(o, 1e-3, 0.01, cycle_momentum=False), lambda o: lr_scheduler.ConstantLR(o),
]  # fmt: skip
SHAPES = [(3, 4), (4,), (), (2, 3, 2), (0, 3)]


class Case:
    """Parameters, an optimiser and a scheduler, stepped along gradients that depend on k alone and where they are."""

    def __init__(self, make: Any, mirror: str, options: dict[str, Any], scheduler: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        self.params = [nn.Parameter((0.3 + torch.rand(s, generator=generator)).to(dtype)) for s in SHAPES]
        options = {key: value.clone() if isinstance(value, Tensor) else value for key, value in options.items()}
        self.optimizer = make([{"params": self.params[:2]}], mirror=MIRRORS[mirror](), **{"lr": 0.01, **options})
        self.optimizer.add_param_group({"params": self.params[2:]})
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)

    def steps(self, first: int, count: int) -> None:
        """Take some steps."""
        for k in range(first, first + count):
            generator = torch.Generator().manual_seed(k)
            for p in self.params:
                p.grad = (p.detach() - torch.rand(p.shape, generator=generator).to(p.dtype)) * 0.5
            self.optimizer.step()
            self.scheduler.step()

    def numbers(self) -> list[Tensor]:
        """Return copies of the parameters."""
        return [p.detach().clone() for p in self.params]


def run(tally: Tally) -> None:
    """Go through all combinations, in random order."""
    warnings.simplefilter("ignore")
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    grid = list(product(OPTIMISERS, MIRRORS, OPTIONS, dtypes))
    tally.random.shuffle(grid)
    for number in tally.cases():
        if number >= len(grid):
            break
        make, mirror, options, dtype = grid[number]
        scheduler = tally.random.randrange(len(SCHEDULERS))
        name = f"{make.__name__}, {mirror}"
        try:
            _one(tally, name, lambda: Case(make, mirror, options, scheduler, dtype), dtype)
        except (ValueError, TypeError) as error:
            tally.note(make.__name__, f"refused: {' '.join(str(error).split())[:60]}")
        except Exception as error:
            tally.fault(f"{name}, {type(error).__name__}", f"{options} {dtype}: {error}")


def _one(tally: Tally, name: str, make: Callable[[], Case], dtype: torch.dtype) -> None:
    kind = name.partition(",")[0]
    whole, cut = make(), make()
    whole.steps(0, 8)
    cut.steps(0, 4)
    if not all(bool(x.isfinite().all()) for x in whole.numbers()):
        tally.fault(f"{name}, finite", "parameters are not")
    tally.note(kind, "steps are finite")
    file = io.BytesIO()
    torch.save((cut.optimizer.state_dict(), cut.scheduler.state_dict(), cut.numbers()), file)
    file.seek(0)
    state, schedule, numbers = torch.load(file, weights_only=True)
    resumed, copied = make(), copy.deepcopy(cut)
    for p, x in zip(resumed.params, numbers, strict=True):
        p.data.copy_(x)
    resumed.optimizer.load_state_dict(state)
    resumed.scheduler.load_state_dict(schedule)
    for what, other in (("resumed", resumed), ("a copy", copied)):
        other.steps(4, 4)
        if not all(map(torch.equal, whole.numbers(), other.numbers())):
            tally.fault(f"{name}, {what}", "ends elsewhere")
        tally.note(kind, f"{what} is the same")
    for p in cut.params:
        p.data.add_(0.25)
        p.grad = torch.zeros_like(p)
    for group in cut.optimizer.param_groups:
        group["weight_decay"] = 0.0
    before = cut.numbers()
    cut.optimizer.step()
    small = 0.02 if dtype == torch.bfloat16 else 1e-4
    far = max(float((x - y).abs().max()) if x.numel() else 0.0 for x, y in zip(before, cut.numbers(), strict=True))
    tally.note(kind, "moves are followed") if far < small else tally.fault(f"{name}, moved", f"undone by {far}")
