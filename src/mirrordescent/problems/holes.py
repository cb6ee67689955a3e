"""Dual points of total-variation problems with missing pixels, where nothing holds Dᵀu back."""

from functools import lru_cache

import torch
from torch import Tensor

from mirrordescent.problems.differences import DIRECTIONS, Differences, Groups, add_adjoint, differences

ROUNDS = 5
ITERATIONS = 30  # of conjugate gradients in a round, at most
TOLERANCE = 3e-3  # of what Dᵀu was in the holes
SIDES = [(side, name, k) for name, k in DIRECTIONS.items() for side in (0, 1)]  # of a difference: its two pixels
RELAXATION = 1.5  # of the projections between rounds; 1 takes more of them, 2 need not settle


class Holes:
    """The pixels H of images that were not observed, and how a dual point u is made to satisfy Dᵀu = 0 on H, |u_g| ≤ r.

    .. code-block:: none

        u ← u − Dp    with DᵀDp = Dᵀu on H, p = 0 elsewhere: the nearest u with Dᵀu = 0 on H
        u ← u + 1.5·(Pu − u),  P the projection onto |u_g| ≤ r

    in turn, which changes only differences that touch H, ending with the first. What exceeds r then is scaled down
    together with all the other differences that touch the same connected hole: that keeps Dᵀu = 0 there, and what
    happens in one hole costs nothing elsewhere.

    Reference: Gubin, Polyak, Raik, USSR Comput. Math. Math. Phys. 7 (1967), for relaxed projections in turn.

    Args:
        observed: 1 where a pixel was observed, 0 where not, four-dimensional and broadcastable to the images.
    """

    def __init__(self, observed: Tensor) -> None:
        self.hidden = 1 - observed
        self.labels = connected(observed == 0).flatten(2)

    @torch.no_grad()
    def close(self, u: Differences, groups: Groups, radius: float | Tensor) -> Differences:
        """Return feasible differences near u with Dᵀu = 0 in the holes, up to the tolerance."""
        u = groups.project(u, radius)
        residual = self._residual(u)
        least = TOLERANCE**2 * _squares(residual)
        for turn in range(ROUNDS):
            if turn:
                u = {name: torch.lerp(u[name], near, RELAXATION) for name, near in groups.project(u, radius).items()}
                residual = self._residual(u)
            u = {name: u[name] - d for name, d in differences(self._solve(residual, least)).items()}
        return self._within(u, groups, radius)

    def _residual(self, u: Differences) -> Tensor:
        """Dᵀu in the holes, 0 elsewhere."""
        zero = u["vertical"].new_zeros(*u["vertical"].shape[:2], *self.hidden.shape[-2:])
        return add_adjoint(zero, u).mul_(self.hidden)

    def _solve(self, r: Tensor, least: Tensor) -> Tensor:
        """Return the p of DᵀDp = r on H by conjugate gradients, until ‖r − DᵀDp‖² ≤ least in every plane by itself."""
        p, d, size = torch.zeros_like(r), r, _squares(r)
        tiny = torch.finfo(r.dtype).tiny
        for _ in range(ITERATIONS):
            going = size > least
            if not bool(going.any()):
                break
            image = add_adjoint(torch.zeros_like(d), differences(d)).mul_(self.hidden)
            step = torch.where(going, size / (d * image).sum((-2, -1), keepdim=True).clamp(min=tiny), 0.0)
            p, r = torch.addcmul(p, step, d), torch.addcmul(r, step, image, value=-1)
            size, before = _squares(r), size
            d = torch.addcmul(r, size / before.clamp(min=tiny), d)
        return p

    def _within(self, u: Differences, groups: Groups, radius: float | Tensor) -> Differences:
        """Scale groups down to the radius, and with them all differences that touch the same hole."""
        factors = {name: _quotient(near, u[name]) for name, near in groups.project(u, radius).items()}
        pixels = torch.ones_like(self._residual(u))
        for side, name, k in SIDES:
            part = pixels.narrow(k, side, pixels.shape[k] - 1)
            torch.minimum(part, factors[name], out=part)
        pixels = self._smallest(pixels)
        for side, name, k in SIDES:
            factors[name] = torch.minimum(factors[name], pixels.narrow(k, side, pixels.shape[k] - 1))
        return {name: factors[name] * u[name] for name in DIRECTIONS}

    def _smallest(self, pixels: Tensor) -> Tensor:
        """Replace every pixel of a hole by the smallest of that hole, and the others by 1."""
        flat = torch.where(self.hidden > 0, pixels, 1.0).flatten(2)
        labels = self.labels.expand_as(flat)
        return flat.scatter_reduce(2, labels, flat, "amin").gather(2, labels).reshape(pixels.shape)


@lru_cache(maxsize=4)
@torch.inference_mode(False)  # they are kept
def holes_of(observed: Tensor) -> Holes:
    """Return the holes of a mask, found once."""
    return Holes(observed)


def connected(hidden: Tensor) -> Tensor:
    """Number the connected parts of (…, height, width), each by the first of its pixels in its plane, row by row.

    Neighbours agree on the smaller of their numbers, and numbers are followed to the end, until nothing changes: about
    as often as the logarithm of the size of a part.

    >>> connected(torch.tensor([[True, True, False], [False, True, True]]))
    tensor([[0, 0, 2],
            [3, 0, 0]])
    """
    index, ends = torch.arange(hidden.numel(), device=hidden.device).reshape(hidden.shape), []
    for side in (0, 1):
        along = [(k, hidden.shape[k] - 1) for k in DIRECTIONS.values()]
        ends.append(torch.cat([index.narrow(k, side, n)[_both(hidden, k)] for k, n in along]))
    numbers = index.flatten()
    while True:
        here, there = (numbers[end] for end in ends)
        low = torch.minimum(here, there)
        agreed = numbers.scatter_reduce(0, here, low, "amin").scatter_reduce(0, there, low, "amin")
        agreed = agreed[agreed]
        if torch.equal(agreed, numbers):
            return numbers.reshape(hidden.shape) % hidden.shape[-2:].numel()
        numbers = agreed


def _both(hidden: Tensor, k: int) -> Tensor:
    """Tell of neighbours whether both are hidden."""
    last = hidden.shape[k] - 1
    return hidden.narrow(k, 0, last) & hidden.narrow(k, 1, last)


def _quotient(part: Tensor, whole: Tensor) -> Tensor:
    """part/whole, and 1 for 0/0."""
    return torch.where(whole == 0, 1.0, part / whole)


def _squares(r: Tensor) -> Tensor:
    """‖r‖² of every plane."""
    return r.square().sum((-2, -1), keepdim=True)
