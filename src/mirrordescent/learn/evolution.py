"""Meta-gradients without derivatives, by evolution strategies."""

from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import torch
from torch import Generator, Tensor

from mirrordescent.conditioning import per_sample_parameters, with_sample_parameters
from mirrordescent.learn.unroll import Differentiation, Judge, Unrolling
from mirrordescent.oracles import require_generator
from mirrordescent.trees import batch_size, per_sample


@dataclass(frozen=True)
class Evolution(Differentiation):
    """The gradient of L(θ) smoothed, E L(θ + sε) with ε standard normal, by m pairs of runs on
    either side of θ:

    .. code-block:: none

        g  =  1/(2sm)  Σ_i (L(θ + s ε_i) − L(θ − s ε_i)) ε_i

    Where step sizes are near the edge of stability, derivatives through many steps explode, and
    those of the smoothed loss do not (Metz et al., ICML 2019). The variance grows with the number
    of parameters: this is for a few dozen. All runs see the same problems and the same noise of the
    oracle, and take compiled steps where there are any. A run that fails counts as much as the
    worst of those that did not. The loss itself is the mean over the runs.

    With problems of many kinds in a batch, ``apart`` gives every problem perturbations of its own,
    in parts that can take them (:class:`~mirrordescent.conditioning.ConditionalLaws`). A batch of B
    problems then looks in m·B directions for the price of m, each judged by its own problem.

    Args:
        pairs: m, the number of pairs.
        spread: s, the distance from θ.
        apart: whether every problem has perturbations of its own.
    """

    pairs: int = 4
    spread: float = 0.1
    apart: bool = False

    def __post_init__(self) -> None:
        if self.pairs < 1 or not self.spread > 0:
            raise ValueError(
                f"pairs must be at least 1 and spread positive, got {self.pairs} and {self.spread}"
            )

    def run(self, unrolling: Unrolling, judge: Judge, generator: Generator | None) -> Tensor:
        """Run on both sides of θ, and restore θ whatever happens."""
        generator = require_generator(generator, self)
        parameters = unrolling.learned
        unrolling = replace(unrolling, compiled=True)
        apart = per_sample_parameters(unrolling.method) if self.apart else set()
        centre = [p.detach().clone() for p in parameters]
        shapes = [
            (batch_size(unrolling.x0), *p.shape) if p in apart else p.shape for p in parameters
        ]
        perturbations = [
            [
                torch.randn(shape, generator=generator, dtype=p.dtype).to(p.device)
                for p, shape in zip(parameters, shapes, strict=True)
            ]
            for _ in range(self.pairs)
        ]
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        runs = []
        with torch.no_grad():
            try:
                for perturbation in perturbations:
                    for side in (self.spread, -self.spread):
                        own = {}
                        for p, middle, epsilon in zip(
                            parameters, centre, perturbation, strict=True
                        ):
                            if p in apart:
                                own[p] = middle + side * epsilon
                            else:
                                p.copy_(middle + side * epsilon)
                        there = (
                            replace(unrolling, method=with_sample_parameters(unrolling.method, own))
                            if own
                            else unrolling
                        )
                        runs.append(judge(there.whole(torch.Generator().manual_seed(seed))))
            finally:
                for p, middle in zip(parameters, centre, strict=True):
                    p.copy_(middle)
        found = _with_failures_as_the_worst(torch.stack(runs, 1))  # (rows, runs, …)
        slopes = (found[:, ::2] - found[:, 1::2]) / (2 * self.spread * self.pairs)
        # ⟨ε_i, θ − θ₀⟩ is zero where θ is, and has ε_i for its gradient; (batch,) if a problem has
        # its own.
        moves = [p - p.detach() for p in parameters]
        along = torch.stack(
            [
                reduce(
                    add,
                    [
                        (m * e).flatten(e.ndim - m.ndim).sum(-1)
                        for m, e in zip(moves, epsilon, strict=True)
                    ],
                )
                for epsilon in perturbations
            ]
        ).to(slopes)
        return found.mean(1) + (
            slopes * (along if along.ndim > 1 else per_sample(along, slopes[0]))
        ).sum(1)


def _with_failures_as_the_worst(found: Tensor) -> Tensor:
    """Replace what is not finite by the largest finite number of its row, if there is one."""
    finite = found.isfinite()
    worst = per_sample(found.where(finite, -torch.inf).flatten(1).amax(1), found)
    return found.where(finite | worst.isinf(), worst)
