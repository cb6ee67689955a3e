"""Meta-gradients without derivatives, by evolution strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor, nn

Losses = tuple[Tensor, Tensor]


def evolution(
    run: Callable[[Generator], Losses],
    parameters: Sequence[nn.Parameter],
    pairs: int,
    spread: float,
    generator: Generator,
) -> Losses:
    """Differentiate L(θ) smoothed, E L(θ + sε) with ε standard normal, by m pairs of runs on either side of θ:

    .. code-block:: none

        g  =  1/(2sm)  Σ_i (L(θ + s ε_i) − L(θ − s ε_i)) ε_i

    Where step sizes are near the edge of stability, derivatives through many steps explode, and those of the smoothed
    loss do not (Metz et al., ICML 2019). The variance grows with the number of parameters: this is for a few dozen.
    All runs meet the same problems and the same noise of the oracle. A run that fails counts as much as the worst of
    those that did not.

    Args:
        run: makes of the oracle's randomness the loss of every problem (batch,) and values along the way.
        parameters: θ, brought back to where they were, whatever happens.
        pairs: m.
        spread: s.
        generator: of the perturbations and of the oracle's noise; on the CPU.

    Returns:
        the mean over the runs of the losses, whose gradient in θ is g, and of the values.
    """
    centre = [p.detach().clone() for p in parameters]
    perturbations = [
        [torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for p in parameters]
        for _ in range(pairs)
    ]
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    found: list[Losses] = []
    with torch.no_grad():
        try:
            for perturbation in perturbations:
                for side in (spread, -spread):
                    for p, middle, epsilon in zip(parameters, centre, perturbation, strict=True):
                        p.copy_(middle + side * epsilon)
                    found.append(run(torch.Generator().manual_seed(seed)))
        finally:
            for p, middle in zip(parameters, centre, strict=True):
                p.copy_(middle)
    losses, values = (torch.stack(each) for each in zip(*found, strict=True))
    finite = losses.isfinite()
    if finite.any():
        losses = losses.where(finite, losses[finite].max())
    sides = losses.mean(1)
    slopes = (sides[::2] - sides[1::2]) / (2 * spread * pairs)
    gradient = [
        torch.stack([slope * epsilon for slope, epsilon in zip(slopes, each, strict=True)]).sum(0)
        for each in zip(*perturbations, strict=True)
    ]
    # Zero where θ is, with g for its gradient.
    linear = torch.stack([(g * (p - p.detach())).sum() for g, p in zip(gradient, parameters, strict=True)]).sum()
    return losses.mean(0) + linear, values.mean(0)
