"""Restoration of pictures with a learned prior: denoising, and other linear inverse problems."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from mirrordescent.problems.anchor import Anchor
from mirrordescent.problems.composite import Composite
from mirrordescent.problems.fits import SquaredError
from mirrordescent.problems.operators import LinearOperator
from mirrordescent.problems.ridge_priors import RidgePrior
from mirrordescent.problems.terms import Term
from mirrordescent.problems.tv import fill_holes

ANCHOR = 0.002
"""Default weight of the quadratic term of :func:`prior_restoration`."""
UNDOING_ANCHOR = 1e-4
"""Weight of this term where a blur or a reduction of size is undone.

It has to be small beside the squares of the frequencies that the operator damps."""
FILLING_LEVEL = 0.005
"""Noise level of the convex profiles for missing pixels without noise.

It is the smallest level of a table. Larger ones are learned from noise and blur."""


def prior_denoising(y: Tensor, sigma: float | Tensor, prior: RidgePrior) -> Composite:
    """Return f(x) = ½‖x − y‖² + R_σ(x), a strongly convex problem.

    R_σ ignores positions at which a filter does not fit, so pixels near the border are regularised
    less. Continue the picture by ``prior.border`` pixels first, for example by reflection.

    Args:
        y: Noisy pictures with values from 0 to 1, (batch, channels, height, width).
        sigma: Standard deviation σ of the noise: a number, or (batch,). A larger σ denoises more.
        prior: Learned prior, such as the entry ``photo-prior`` of the zoo.
    """
    _require_channels(y.shape[1], prior)
    return Composite(SquaredError(y), [prior.term(sigma)])


def prior_restoration(
    y: Tensor,
    sigma: float | Tensor,
    prior: RidgePrior,
    operator: LinearOperator | None = None,
    mask: Tensor | None = None,
    centre: Tensor | None = None,
    anchor: float = ANCHOR,
) -> Composite:
    """Return f(x) = ½‖Z(Ax − y)‖² + R_σ(x) + (ρ/2)‖x − c‖², with a convex R_σ.

    The data term is not strongly convex: pixels are missing, or A damps some frequencies. The last
    term makes f strongly convex with the modulus ρ, so that its minimum is proven by gradients. It
    changes the objective: where data and prior are flat, minimisers move towards c.

    Args:
        y: Observed data, (batch, …).
        sigma: Noise level σ of the prior: a number, or (batch,).
        prior: Learned prior with convex profiles.
        operator: Operator A, such as :class:`~mirrordescent.problems.Blur`; None for the identity.
        mask: 1 or True where an entry of y was observed; None if all were.
        centre: Point c, which is also a good start. By default y with filled holes, or the start of
            the data term if there is an operator.
        anchor: Weight ρ. If it is 0, the last term is left out, and there is no proof.
    """
    fit = SquaredError(y, operator, mask)
    _require_channels(fit.sample_shape[0], prior)
    terms: list[Term] = [prior.term(sigma, convex=True)]
    if anchor:
        if centre is None:
            holes = mask is not None and operator is None
            centre = fill_holes(y, cast(Tensor, fit.mask).expand_as(y)) if holes else fit.start()
        terms.append(Anchor(anchor, centre))
    return Composite(fit, terms)


def _require_channels(channels: int, prior: RidgePrior) -> None:
    if channels != prior.channels:
        raise ValueError(
            f"pictures have {channels} channels, but the prior was learned for {prior.channels}: "
            "use photo-prior for colour pictures and photo-prior-grey for grey ones"
        )
