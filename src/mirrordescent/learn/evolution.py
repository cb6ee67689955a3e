"""Meta-gradients without derivatives, by evolution strategies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import torch
from torch import Generator, Tensor, nn

from mirrordescent.conditioning import per_sample_parameters, with_sample_parameters
from mirrordescent.learn.unrolling import Differentiation, Judge, Unrolling
from mirrordescent.oracles import require_generator
from mirrordescent.trees import batch_size, per_sample


@dataclass(frozen=True)
class Evolution(Differentiation):
    """The gradient of the smoothed loss E L(θ + sε), ε ~ N(0, I), estimated by m pairs of runs.

    .. code-block:: none

        g  =  1/(2sm)  Σ_i (L(θ + s ε_i) − L(θ − s ε_i)) ε_i

    If step sizes are near the edge of stability, derivatives through many steps explode; those of
    the smoothed loss do not (Metz et al., ICML 2019). The variance grows with the number of
    parameters, so that this is for a few dozen parameters. All runs see the same problems and the
    same noise of the oracle, and use compiled steps if there are any. A run that fails counts as
    the worst run that does not. The loss is the mean over the runs.

    With ``apart``, every problem of a batch has its own perturbations, in parts that support it
    (:class:`~mirrordescent.conditioning.ConditionalLaws`). A batch of B different problems then
    explores m·B directions at the cost of m, and each direction is judged by its own problem.

    Args:
        pairs: Number m of pairs of runs.
        spread: Standard deviation s of the perturbations.
        apart: Whether every problem has its own perturbations.
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
        """Run on both sides of θ. θ is restored afterwards, even after an error."""
        generator = require_generator(generator, self)
        parameters = unrolling.learned
        unrolling = replace(unrolling, compiled=True)
        apart = per_sample_parameters(unrolling.method) if self.apart else set()
        shapes: list[Sequence[int]] = []
        for parameter in parameters:
            batch = (batch_size(unrolling.x0),) if parameter in apart else ()
            shapes.append((*batch, *parameter.shape))
        perturbations = [_normal(parameters, shapes, generator) for _ in range(self.pairs)]
        seed = int(torch.randint(2**31 - 1, (), generator=generator))
        centre = [parameter.detach().clone() for parameter in parameters]
        runs = []
        with torch.no_grad():
            try:
                for perturbation in perturbations:
                    for scale in (self.spread, -self.spread):
                        targets = [m + scale * e for m, e in zip(centre, perturbation, strict=True)]
                        moved = _move(unrolling, parameters, targets, apart)
                        random = torch.Generator().manual_seed(seed)
                        runs.append(judge(moved.run_all(random)))
            finally:
                for parameter, middle in zip(parameters, centre, strict=True):
                    parameter.copy_(middle)
        results = _replace_failures(torch.stack(runs, 1))  # (rows, runs, …)
        slopes = (results[:, ::2] - results[:, 1::2]) / (2 * self.spread * self.pairs)
        along = _directions(parameters, perturbations).to(slopes)
        if along.ndim == 1:
            along = per_sample(along, slopes[0])
        return results.mean(1) + (slopes * along).sum(1)


def _normal(
    parameters: Sequence[nn.Parameter], shapes: Sequence[Sequence[int]], generator: Generator
) -> list[Tensor]:
    """Draw a standard normal perturbation ε of the parameters."""
    perturbation = []
    for parameter, shape in zip(parameters, shapes, strict=True):
        noise = torch.randn(tuple(shape), generator=generator, dtype=parameter.dtype)
        perturbation.append(noise.to(parameter.device))
    return perturbation


def _move(
    unrolling: Unrolling,
    parameters: Sequence[nn.Parameter],
    values: Sequence[Tensor],
    apart: set[nn.Parameter],
) -> Unrolling:
    """Set the parameters to some values, and return a run there.

    Parameters in ``apart`` stay as they are. The returned run has a method with their values for
    each sample.
    """
    per_problem = {}
    for parameter, value in zip(parameters, values, strict=True):
        if parameter in apart:
            per_problem[parameter] = value
        else:
            parameter.copy_(value)
    if not per_problem:
        return unrolling
    return replace(unrolling, method=with_sample_parameters(unrolling.method, per_problem))


def _directions(
    parameters: Sequence[nn.Parameter], perturbations: Sequence[Sequence[Tensor]]
) -> Tensor:
    """Return ⟨ε_i, θ − θ₀⟩ for every perturbation, which is 0 and has the gradient ε_i.

    The shape is (m,), or (m, batch) if problems have their own perturbations.
    """
    moves = [parameter - parameter.detach() for parameter in parameters]
    products = []
    for perturbation in perturbations:
        terms = [
            (move * noise).flatten(noise.ndim - move.ndim).sum(-1)
            for move, noise in zip(moves, perturbation, strict=True)
        ]
        products.append(reduce(add, terms))
    return torch.stack(products)


def _replace_failures(results: Tensor) -> Tensor:
    """Replace results that are not finite by the largest finite result of the row, if any."""
    finite = results.isfinite()
    worst = per_sample(results.where(finite, -torch.inf).flatten(1).amax(1), results)
    return results.where(finite | worst.isinf(), worst)
