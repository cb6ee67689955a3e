"""Verification of certificates against exact minima, with true and forged witnesses.

A certificate that is called proven must be confirmed. No witness, however it was changed, may
confirm a bound above the minimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import mpmath
import torch
from torch import Tensor

from campaigns.tally import Tally
from mirrordescent.problems.base import Problem
from mirrordescent.references import Certificate, Witness, certificate, certify
from mirrordescent.references.certificate import NotCertifiable
from mirrordescent.references.verification import recompute

STEPS = 100
"""Largest number of steps of the solver that certifies. Certificates need not be tight here."""

TRIAL_STEPS = 10
"""Steps of the trial runs that choose the ratio of step sizes."""

FORGERIES = 2
"""Number of forged witnesses of every certificate."""


def check_verification(tally: Tally, name: str, problem: Problem, minima: Sequence[Any]) -> None:
    """Certify a batch, and compare what its witness and forged ones prove with the minima.

    Args:
        tally: Counts of the campaign.
        name: Name of the case.
        problem: Batch of problems.
        minima: Upper bounds on the minimum of every sample, exact or nearly so.
    """
    with _short_runs():
        try:
            found = certify(problem, 1e-3, cache=False)
        except NotCertifiable:
            tally.note(name, "not certifiable")
            return
    if not found.proven:
        tally.note(name, "certified without a proof")
        return
    tally.expect(
        f"{name}, verification",
        found.verify(problem).confirmed,
        "proven and confirmed",
        f"proven, but {found.verify(problem)}",
    )
    above = torch.tensor([_next_above(minimum) for minimum in minima], dtype=torch.float64)
    if bool((found.lower >= above).any()):
        tally.fault(f"{name}, certificate", f"lower {found.lower} above the minimum {above}")
    _check_bound(tally, name, problem, found, above, "true")
    for _ in range(FORGERIES):
        kind, change = tally.random.choice(list(CHANGES.items()))
        forged = _changed(found, change, tally.random)
        _check_bound(tally, name, problem, forged, above, kind)


def _check_bound(
    tally: Tally, name: str, problem: Problem, found: Certificate, above: Tensor, kind: str
) -> None:
    """Count a fault if a witness proves a bound above the minimum, or confirms one.

    Args:
        tally: Counts of the campaign.
        name: Name of the case.
        problem: Batch of problems.
        found: Certificate with a true or forged witness.
        above: Numbers above the minima, (batch,).
        kind: How the witness was changed.
    """
    assert found.witness is not None
    bound = recompute(found.witness, problem)
    proves_too_much = bound is not None and bool((bound >= above).any())
    raised = replace(found, lower=above)
    # The values at x refute some forgeries; the witness alone must be refused as well.
    accepted = raised.verify(problem).confirmed
    tally.expect(
        f"{name}, verification",
        not proves_too_much and not accepted,
        f"{kind} witness, bound above the minimum refused",
        f"{kind} witness proves {bound} or confirms {above}, which is above the minimum",
    )


def _next_above(minimum: Any) -> float:
    """Return the smallest double that is greater than a number with many digits."""
    number = float(minimum)
    while mpmath.mpf(number) <= minimum and math.isfinite(number):
        number = math.nextafter(number, math.inf)
    return number


@contextmanager
def _short_runs() -> Iterator[None]:
    """Limit the number of steps of solvers that certify."""
    steps = certificate.ITERATIONS
    trial_steps = certificate.TRIAL_ITERATIONS
    certificate.ITERATIONS = STEPS
    certificate.TRIAL_ITERATIONS = TRIAL_STEPS
    try:
        yield
    finally:
        certificate.ITERATIONS = steps
        certificate.TRIAL_ITERATIONS = trial_steps


def _scaled(tensor: Tensor, random: Random) -> Tensor:
    return tensor * random.choice((-1.0, 0.5, 1 + 1e-12, 1.001, 3.0, 1e9))


def _perturbed(tensor: Tensor, random: Random) -> Tensor:
    generator = torch.Generator().manual_seed(random.randrange(10**9))
    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    size = tensor.square().mean().sqrt() + random.choice((0.0, 1e-12, 1.0))
    return tensor + random.choice((1e-15, 1e-9, 1e-3, 1.0, 1e6)) * size * noise


def _rotated(tensor: Tensor, random: Random) -> Tensor:
    """Give every sample the witness of another one."""
    return tensor.roll(1, 0)


def _spoiled(tensor: Tensor, random: Random) -> Tensor:
    spoiled = tensor.clone()
    if spoiled.numel():
        spoiled.view(-1)[random.randrange(spoiled.numel())] = random.choice(
            (math.nan, math.inf, -math.inf, 1e300, -1e300)
        )
    return spoiled


CHANGES: dict[str, Callable[[Tensor, Random], Tensor]] = {
    "scaled": _scaled,
    "perturbed": _perturbed,
    "exchanged": _rotated,
    "spoiled": _spoiled,
}
"""How witnesses are forged."""


def _changed(
    found: Certificate, change: Callable[[Tensor, Random], Tensor], random: Random
) -> Certificate:
    """Return a certificate with another witness; half of the time only one block is changed."""
    assert found.witness is not None
    tensors = dict(found.witness.tensors)
    names = sorted(tensors)
    if random.random() < 0.5:
        names = [random.choice(names)]
    for name in names:
        tensors[name] = change(tensors[name].double().contiguous(), random)
    return replace(found, witness=Witness(found.witness.kind, tensors))
