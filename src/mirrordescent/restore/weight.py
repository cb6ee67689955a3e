"""Choice of the weight of a photograph from its noise and an estimate of the error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor

from mirrordescent import zoo
from mirrordescent._internal.checks import require_not_negative
from mirrordescent.methods import Method
from mirrordescent.problems.tv import TVInpainting
from mirrordescent.restore.compression import Compression
from mirrordescent.restore.noise import Noise, estimate_noise
from mirrordescent.solving import solve

# These constants were chosen on the training photographs of BSDS500.
NEGLIGIBLE = 0.008  # noise level that clean photographs have
# First weight λ = RULE σ^POWER, for isotropic, coupled total variation of three channels.
RULE = 3.56
POWER = 1.245
ANISOTROPIC = 0.75  # factor of the first weight for anisotropic total variation
CLEAN_WEIGHT = 0.02  # for holes in photographs without noise, whose known pixels are kept
STEP = 1.6  # ratio of neighbouring weights
STEPS = 2  # weights that are tried on both sides of the first one
# number and side of the pieces by which a large photograph is judged
PIECES = 6
SIDE = 128
HELD_OUT = 0.05  # share of the known pixels
PROBE = 0.1  # size of the perturbation for the divergence, relative to the noise
# After these iterations of the learned method, the errors hardly change any more.
ITERATIONS = 15


class TriedWeight(NamedTuple):
    """A weight, and the estimated mean squared error of its answer on known pixels."""

    weight: float
    risk: float


@dataclass(frozen=True)
class WeightChoice:
    """The chosen weight of a photograph.

    Args:
        weight: Weight λ.
        noise: Estimated standard deviation σ of the noise.
        path: Weights that were tried, in increasing order; empty if there is no noise.
        pictures: A piece of the photograph restored with these weights, and the observed piece.
        certain: Whether noise could be told from texture; if not, ``noise`` is a guess.
    """

    weight: float
    noise: float
    path: tuple[TriedWeight, ...] = ()
    pictures: tuple[Tensor, ...] = field(default=(), repr=False, compare=False)
    certain: bool = True

    @property
    def clean(self) -> bool:
        """Whether there is too little noise to remove, so that known pixels should be kept."""
        if self.noise < NEGLIGIBLE:
            return True
        return bool(self.path) and min(tried.risk for tried in self.path) >= self.noise**2


@torch.no_grad()
def choose_weight(
    problem: TVInpainting,
    *,
    halved: Sequence[bool] = (),
    compression: Sequence[Compression | None] = (),
    noise: float | Sequence[Noise] | None = None,
    checked: bool | None = None,
    fused: bool | None = None,
) -> list[WeightChoice]:
    """Choose the weight λ of every image of a batch; the weight of the problem is ignored.

    The noise σ is estimated on known pixels unless it is given. The first weight is proportional to
    σ^1.245. The weights around it are judged by Stein's unbiased estimate of the mean squared error
    on the n known pixels,

    .. code-block:: none

        SURE(λ) = (‖Z(x_λ(y) − y)‖² + 2σ² div x_λ(y))/n − σ²
        div x_λ(y) ≈ ⟨b, x_λ(y + εb) − x_λ(y)⟩/ε

    with random signs b. All weights and all y + εb are solved together, as one batch. As a check,
    some pixels are held out: estimated noise cannot be larger than the error of their prediction.
    Large images are judged by a few pieces.

    Args:
        problem: The images, with values from 0 to 1.
        halved: Deprecated; use ``compression``.
        compression: Compression of each image if it comes from a JPEG file, else None; by default
            none does.
        noise: Standard deviation σ of the noise, or the noise of each image; by default it is
            estimated.
        checked: Whether to check the noise on held-out pixels; by default if it is estimated.
        fused: Whether to use kernels in C; see :func:`~mirrordescent.solve`.

    Reference: Ramani, Blu and Unser, IEEE Trans. Image Process. 17 (2008).

    >>> noise = torch.randn(1, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    >>> from mirrordescent import TVDenoising
    >>> (choice,) = choose_weight(TVDenoising(0.5 + 0.1 * noise, isotropic=True, coupled=True))
    >>> 0.08 < choice.noise < 0.11, choice.weight > 0.1, choice.clean
    (True, True, False)
    """
    if problem.operator is not None:
        raise ValueError("choose_weight needs a problem without an operator")
    entry = cast(Method[Any], zoo.load("image-tv-isotropic" if problem.isotropic else "image-tv"))
    method = entry.to(problem.y)
    given = noise is not None if checked is None else not checked
    if noise is None:
        noises = estimate_noise(problem.y, problem.mask, halved, compression=compression)
    elif isinstance(noise, (int, float)):
        require_not_negative(noise=noise)
        noises = [Noise(float(noise))] * len(problem.y)
    else:
        noises = list(noise)
    choices = []
    for i, (y, each) in enumerate(zip(problem.y, noises, strict=True)):
        mask = None if problem.mask is None else problem.mask[i % len(problem.mask)]
        search = _WeightSearch(_pieces(y, mask), problem, method, each, given, fused)
        choices.append(search.choice())
    return choices


class _WeightSearch:
    """The search for the weight of one image.

    Args:
        pieces: Pieces of the image, and their known pixels as 0 or 1.
        like: Problem whose form of total variation is used.
        method: Method that solves.
        noise: The noise.
        given: Whether the noise is given, so that it is not checked.
        fused: Whether to use kernels in C.
    """

    def __init__(
        self,
        pieces: tuple[Tensor, Tensor],
        like: TVInpainting,
        method: Method[Any],
        noise: Noise,
        given: bool,
        fused: bool | None,
    ) -> None:
        self.y, self.mask = pieces
        self.like = like
        self.method = method
        self.noise = noise
        self.given = given
        self.fused = fused
        generator = Generator().manual_seed(0)
        shape = self.mask.shape if noise.shared else self.y.shape
        signs = 2 * torch.randint(0, 2, shape, generator=generator) - 1
        self.signs = (signs.to(self.y) * self.mask).expand_as(self.y)
        chance = torch.rand(self.mask.shape, generator=generator).to(self.y)
        self.held_out = self.mask * (chance < HELD_OUT)
        self.shown = int(self.y.flatten(1).std(1).argmax())  # the piece with the most contrast

    def choice(self) -> WeightChoice:
        """Return the weight whose estimated error is least."""
        level = self.noise.level
        if level < NEGLIGIBLE:
            return WeightChoice(self._clean_weight(level), level, certain=self.noise.certain)
        first = self._first_weight(level)
        steps = list(range(-STEPS, STEPS + 1))
        tried, predicted = self._solve_all([first * STEP**k for k in steps])
        if not self.given:
            level = min(level, predicted)
        if level < NEGLIGIBLE:
            return WeightChoice(self._clean_weight(level), level, certain=self.noise.certain)
        risks = [fidelity + level**2 * (2 * divergence - 1) for fidelity, divergence, _ in tried]
        best = min(range(len(steps)), key=lambda i: risks[i])
        vertex = 0.0
        if 0 < best < len(steps) - 1:
            vertex = _vertex(*risks[best - 1 : best + 2])
        observed = self.y[self.shown] * self.mask[self.shown]
        return WeightChoice(
            first * STEP ** (steps[best] + vertex),
            level,
            tuple(TriedWeight(first * STEP**k, risk) for k, risk in zip(steps, risks, strict=True)),
            (*(picture for _, _, picture in tried), observed),
            certain=self.noise.certain,
        )

    def _clean_weight(self, level: float) -> float:
        has_holes = not bool(self.mask.all())
        return CLEAN_WEIGHT if has_holes else max(self._first_weight(level), 1e-4)

    def _first_weight(self, level: float) -> float:
        return first_weight(self.like, level)

    def _solve_all(self, weights: Sequence[float]) -> tuple[list[_Answer], float]:
        """Solve with all weights, and for the held-out pixels.

        Returns:
            The answer for every weight, and the root mean squared error of the prediction of
            held-out pixels, or infinity if too few pixels are known.
        """
        epsilon = PROBE * self.noise.level
        rest = self.mask - self.held_out
        predicts = bool(self.held_out.any()) and bool(rest.flatten(1).any(1).all())
        predicts = predicts and not self.given
        count = len(weights)
        pieces = len(self.y)
        y = [self.y] * count + [self.y + epsilon * self.signs] * count
        masks = [self.mask] * (2 * count)
        each_weight = [*weights, *weights]
        if predicts:
            y.append(self.y * rest)
            masks.append(rest)
            each_weight.append(weights[count // 2])
        weight = torch.tensor(each_weight, dtype=self.y.dtype, device=self.y.device)
        x = self._solve(torch.cat(y), torch.cat(masks), weight.repeat_interleave(pieces))
        answers = x.reshape(-1, *self.y.shape)
        known = float(self.mask.expand_as(self.y).sum())
        tried = []
        for answer, probed in zip(answers[:count], answers[count : 2 * count], strict=True):
            fidelity = float((self.mask * (answer - self.y)).square().sum()) / known
            divergence = float((self.signs * (probed - answer)).sum()) / (epsilon * known)
            tried.append(_Answer(fidelity, divergence, answer[self.shown].clamp(0, 1)))
        if not predicts:
            return tried, math.inf
        errors = (self.held_out * (answers[-1] - self.y)).square().sum()
        predicted = float(errors / self.held_out.expand_as(self.y).sum()) ** 0.5
        return tried, predicted

    def _solve(self, y: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
        like = self.like
        problem = TVInpainting(
            y,
            None if bool(mask.all()) else mask,
            weight,
            like.scale,
            isotropic=like.isotropic,
            coupled=like.coupled,
            huber=like.huber,
        )
        solution = solve(
            problem,
            self.method,
            problem.start(fill=True),
            iterations=ITERATIONS,
            check_every=ITERATIONS,
            trace=[ITERATIONS],
            fused=self.fused,
            progress=False,
        )
        assert isinstance(solution.x, Tensor)
        return solution.x


class _Answer(NamedTuple):
    """The answer for a weight: ‖Z(x − y)‖²/n, div x/n, and the restored piece that is shown."""

    fidelity: float
    divergence: float
    picture: Tensor


def first_weight(problem: TVInpainting, level: float) -> float:
    """Return the weight that usually suits noise of a level.

    Args:
        problem: Problem whose form of total variation and number of channels are used.
        level: Standard deviation of the noise.
    """
    channels = problem.y.shape[1] if problem.coupled else 1
    factor = 1 if problem.isotropic else ANISOTROPIC
    return RULE * level**POWER * (channels / 3) ** 0.5 * factor


def _pieces(y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return an image as a batch, or pieces from all over a large image, and their known pixels."""
    known = (torch.ones_like(y[:1]) if mask is None else mask[:1]).to(y)
    whole = (y.unsqueeze(0), known.unsqueeze(0))
    height, width = y.shape[1:]
    if height * width <= PIECES * SIDE**2:
        return whole
    rows, columns = (2, 3) if width >= height else (3, 2)
    piece_height = min(SIDE, height)
    piece_width = min(SIDE, width)
    pieces = []
    masks = []
    for i in range(rows):
        for j in range(columns):
            top = round((height - piece_height) * (i + 0.5) / rows)
            left = round((width - piece_width) * (j + 0.5) / columns)
            window = (slice(None), slice(top, top + piece_height), slice(left, left + piece_width))
            if bool(known[window].any()):
                pieces.append(y[window])
                masks.append(known[window])
    if not pieces:
        return whole
    return torch.stack(pieces), torch.stack(masks)


def _vertex(left: float, middle: float, right: float) -> float:
    """Return the minimiser of the parabola through values at −1, 0 and 1, clipped to ±½.

    >>> _vertex(1.0, 0.0, 1.0), _vertex(2.0, 1.0, 1.0)
    (0.0, 0.5)
    """
    curvature = left - 2 * middle + right
    if curvature <= 0:
        return 0.0
    return min(0.5, max(-0.5, (left - right) / (2 * curvature)))
