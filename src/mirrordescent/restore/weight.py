"""Choice of the weight of a photograph from its noise and an estimate of the error."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor

from mirrordescent import zoo
from mirrordescent.methods import Method, proven
from mirrordescent.problems.tv import TVInpainting
from mirrordescent.restore.noise import Noise, estimate_noise
from mirrordescent.solving import gap, solve

# These constants were chosen on the training photographs of BSDS500.
NEGLIGIBLE = 0.008  # noise level that clean photographs have
# First weight λ = RULE σ^POWER, for isotropic, coupled total variation of three channels.
RULE = 3.56
POWER = 1.245
ANISOTROPIC = 0.75  # factor of the first weight for anisotropic total variation
CLEAN_WEIGHT = 0.02  # for holes in photographs without noise, whose known pixels are kept
STEP = 2**0.5  # ratio of neighbouring weights
MAX_STEPS = 4  # from the first weight
# number and side of the pieces by which a large photograph is judged
PIECES = 6
SIDE = 128
HELD_OUT = 0.05  # share of the known pixels
PROBE = 0.1  # size of the perturbation for the divergence, relative to the noise
TOLERANCE = 3e-3
ITERATIONS = 300


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
    """

    weight: float
    noise: float
    path: tuple[TriedWeight, ...] = ()
    pictures: tuple[Tensor, ...] = field(default=(), repr=False, compare=False)

    @property
    def clean(self) -> bool:
        """Whether there is too little noise to remove, so that known pixels should be kept."""
        if self.noise < NEGLIGIBLE:
            return True
        return bool(self.path) and min(tried.risk for tried in self.path) >= self.noise**2


@torch.no_grad()
def choose_weight(
    problem: TVInpainting, *, halved: Sequence[bool] = (), fused: bool | None = None
) -> list[WeightChoice]:
    """Choose the weight λ of every image of a batch; the weight of the problem is ignored.

    The noise σ is estimated on known pixels. The first weight is proportional to σ^1.245. From
    there weights are tried in the direction in which Stein's unbiased estimate of the mean squared
    error on the n known pixels decreases,

    .. code-block:: none

        SURE(λ) = (‖Z(x_λ(y) − y)‖² + 2σ² div x_λ(y))/n − σ²
        div x_λ(y) ≈ ⟨b, x_λ(y + εb) − x_λ(y)⟩/ε

    with random signs b. Every solve starts at the previous solution. As a check some pixels are
    held out: the noise cannot be larger than the error of their prediction. Large images are judged
    by a few pieces.

    Args:
        problem: The images, with values from 0 to 1.
        halved: Whether the colours of each image have half the resolution, as in most JPEG files;
            by default none has.
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
    method = proven(entry).to(problem.y)
    noises = estimate_noise(problem.y, problem.mask, halved)
    choices = []
    for i, (y, noise) in enumerate(zip(problem.y, noises, strict=True)):
        mask = None if problem.mask is None else problem.mask[i % len(problem.mask)]
        search = _WeightSearch(_pieces(y, mask), problem, method, noise, fused)
        choices.append(search.choice())
    return choices


class _WeightSearch:
    """The search for the weight of one image.

    Args:
        pieces: Pieces of the image, and their known pixels as 0 or 1.
        like: Problem whose form of total variation is used.
        method: Method that solves.
        noise: Estimated noise.
        fused: Whether to use kernels in C.
    """

    def __init__(
        self,
        pieces: tuple[Tensor, Tensor],
        like: TVInpainting,
        method: Method[Any],
        noise: Noise,
        fused: bool | None,
    ) -> None:
        self.y, self.mask = pieces
        self.like = like
        self.method = method
        self.noise = noise.level
        self.fused = fused
        generator = Generator().manual_seed(0)
        shape = self.mask.shape if noise.shared else self.y.shape
        signs = 2 * torch.randint(0, 2, shape, generator=generator) - 1
        self.signs = (signs.to(self.y) * self.mask).expand_as(self.y)
        self.chance = torch.rand(self.mask.shape, generator=generator).to(self.y)
        self.starts: tuple[Tensor | None, Tensor | None] = (None, None)
        self.shown = int(self.y.flatten(1).std(1).argmax())  # the piece with the most contrast

    def choice(self) -> WeightChoice:
        if self.noise >= NEGLIGIBLE:
            self.noise = min(self.noise, self._prediction_error())
        if self.noise < NEGLIGIBLE:
            has_holes = not bool(self.mask.all())
            weight = CLEAN_WEIGHT if has_holes else max(self._first_weight(), 1e-4)
            return WeightChoice(weight, self.noise)
        first = self._first_weight()
        tried: dict[int, tuple[float, Tensor]] = {}

        def risk(step: int) -> float:
            if step not in tried:
                tried[step] = self._risk(first * STEP**step)
            return tried[step][0]

        step = min((-1, 0, 1), key=risk)
        direction = step
        while step and abs(step) < MAX_STEPS and risk(step + direction) < risk(step):
            step += direction
        vertex = _vertex(risk(step - 1), risk(step), risk(step + 1))
        steps = sorted(tried)
        observed = self.y[self.shown] * self.mask[self.shown]
        return WeightChoice(
            first * STEP ** (step + vertex),
            self.noise,
            tuple(TriedWeight(first * STEP**k, tried[k][0]) for k in steps),
            (*(tried[k][1] for k in steps), observed),
        )

    def _first_weight(self) -> float:
        channels = self.y.shape[1] if self.like.coupled else 1
        factor = 1 if self.like.isotropic else ANISOTROPIC
        return RULE * self.noise**POWER * (channels / 3) ** 0.5 * factor

    def _risk(self, weight: float) -> tuple[float, Tensor]:
        """Return SURE, and the restored piece that is shown."""
        epsilon = PROBE * self.noise
        x = self._solve(self.y, self.mask, weight, self.starts[0])
        probed = self._solve(self.y + epsilon * self.signs, self.mask, weight, self.starts[1])
        self.starts = (x, probed)
        known = float(self.mask.expand_as(x).sum())
        fidelity = float((self.mask * (x - self.y)).square().sum()) / known
        divergence = float((self.signs * (probed - x)).sum()) / (epsilon * known)
        return fidelity + self.noise**2 * (2 * divergence - 1), x[self.shown].clamp(0, 1)

    def _prediction_error(self) -> float:
        """Return the root mean squared error of the prediction of held-out pixels."""
        held_out = self.mask * (self.chance < HELD_OUT)
        rest = self.mask - held_out
        if not bool(held_out.any()) or not bool(rest.flatten(1).any(1).all()):
            return self.noise
        x = self._solve(self.y * rest, rest, self._first_weight(), None)
        count = float(held_out.expand_as(x).sum())
        return (float((held_out * (x - self.y)).square().sum()) / count) ** 0.5

    def _solve(self, y: Tensor, mask: Tensor, weight: float, start: Tensor | None) -> Tensor:
        like = self.like
        problem = TVInpainting(
            y,
            mask,
            weight,
            like.scale,
            isotropic=like.isotropic,
            coupled=like.coupled,
            huber=like.huber,
        )
        solution = solve(
            problem,
            self.method,
            problem.start(fill=True) if start is None else start,
            iterations=ITERATIONS,
            stop=gap(TOLERANCE, start_value=problem.value(problem.start())),
            check_every=20,
            fused=self.fused,
            progress=False,
        )
        assert isinstance(solution.x, Tensor)
        return solution.x


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
