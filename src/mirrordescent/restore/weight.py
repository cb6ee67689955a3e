"""Which weight suits a photograph: from its noise, by an estimate of the error that is left."""

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

# All of these were chosen on the training photographs of BSDS500.
# noise, in full brightness, that is taken for none: photographs have that much of their own
NEGLIGIBLE = 0.008
# λ = RULE σ^POWER of isotropic, coupled total variation of three channels
RULE = 3.56
POWER = 1.245
CLEAN_WEIGHT = 0.02  # for holes in photographs without noise, whose known pixels are kept
STEP = 2**0.5  # from one weight of the path to the next
FURTHEST = 4  # steps from the rule's weight
# of what a large photograph is judged by
SIDE = 128
PIECES = 6
HELD_OUT = 0.05  # share of the known pixels
PROBE = 0.1  # of the noise: how far pixels are moved to find out how much the answer follows them
TOLERANCE = 3e-3
ITERATIONS = 300


class Point(NamedTuple):
    """A weight, and the mean squared error that its answer is estimated to have on known pixels."""

    weight: float
    risk: float


@dataclass(frozen=True)
class Choice:
    """The weight of one photograph, and why.

    Args:
        weight: λ.
        noise: σ, estimated.
        path: weights that were tried, in rising order, with their estimated errors; empty if there
            is no noise.
        pictures: what they make of a piece of the photograph, of which the observed part is last.
    """

    weight: float
    noise: float
    path: tuple[Point, ...] = ()
    pictures: tuple[Tensor, ...] = field(default=(), repr=False, compare=False)

    @property
    def clean(self) -> bool:
        """Whether there is too little noise to remove any: it is better to keep what is known."""
        return self.noise < NEGLIGIBLE or bool(
            self.path and min(p.risk for p in self.path) >= self.noise**2
        )


@torch.no_grad()
def choose_weight(
    problem: TVInpainting, *, halved: Sequence[bool] = (), fused: bool | None = None
) -> list[Choice]:
    """Choose λ for every image of a batch, from 0 to 1, whatever the weight of the problem is.

    The noise σ is estimated on known pixels. A rule, λ ~ σ^1.245, gives the first weight; from
    there the path goes to where Stein's estimate of the mean squared error on the n known pixels is
    least,

    .. code-block:: none

        SURE(λ) = (‖Z(x_λ(y) − y)‖² + 2σ² div x_λ(y))/n − σ²,   div x_λ(y) ≈ ⟨b, x_λ(y + εb) − x_λ(y)⟩/ε

    with signs b at random. Every solution is the start of the next. As a check some pixels are held
    out: no noise can be larger than the error at which they are predicted. Large images are judged
    by a few pieces.

    Args:
        problem: the images, with values from 0 to 1.
        halved: whether the colours of each image are at half the resolution, as in most JPEG files;
            by default of none.
        fused: use kernels in C; see :func:`~mirrordescent.solve`.

    Reference: Ramani, Blu and Unser, IEEE Trans. Image Process. 17 (2008).

    >>> noise = torch.randn(1, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    >>> from mirrordescent import TVDenoising
    >>> (choice,) = choose_weight(TVDenoising(0.5 + 0.1 * noise, isotropic=True, coupled=True))
    >>> 0.08 < choice.noise < 0.11, choice.weight > 0.1, choice.clean
    (True, True, False)
    """
    if problem.operator is not None:
        raise ValueError(
            "choose_weight is for images that are observed directly, without an operator"
        )
    entry = cast(Method[Any], zoo.load("image-tv-isotropic" if problem.isotropic else "image-tv"))
    method = proven(entry).to(problem.y)
    noises = estimate_noise(problem.y, problem.mask, halved)
    count = len(problem.y)
    masks = [None] * count if problem.mask is None else list(problem.mask.expand(count, -1, -1, -1))
    return [
        _Search(_pieces(y, mask), problem, method, noise, fused).choice()
        for y, mask, noise in zip(problem.y, masks, noises, strict=True)
    ]


class _Search:
    """The search for the weight of one image, by pieces of it."""

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
        self.signs = (
            (2 * torch.randint(0, 2, shape, generator=generator) - 1).to(self.y) * self.mask
        ).expand_as(self.y)
        self.chance = torch.rand(self.mask.shape, generator=generator).to(self.y)
        self.starts: tuple[Tensor | None, Tensor | None] = (None, None)

    def choice(self) -> Choice:
        holes = not bool(self.mask.all())
        if self.noise >= NEGLIGIBLE:
            self.noise = min(self.noise, self._prediction_error())
        if self.noise < NEGLIGIBLE:
            return Choice(CLEAN_WEIGHT if holes else max(self._rule(), 1e-4), self.noise)
        middle = self._rule()
        found: dict[int, tuple[float, Tensor]] = {}

        def risk(step: int) -> float:
            if step not in found:
                found[step] = self._risk(middle * STEP**step)
            return found[step][0]

        step = min((-1, 0, 1), key=risk)
        while (
            step
            and abs(step) < FURTHEST
            and risk(step + (direction := 1 if step > 0 else -1)) < risk(step)
        ):
            step += direction
        risk(step - 1), risk(step + 1)
        path = tuple(Point(middle * STEP**k, found[k][0]) for k in sorted(found))
        pictures = tuple(found[k][1] for k in sorted(found))
        best = middle * STEP ** (step + _vertex(*(risk(step + k) for k in (-1, 0, 1))))
        return Choice(
            best, self.noise, path, (*pictures, self.y[self._shown] * self.mask[self._shown])
        )

    @property
    def _shown(self) -> int:
        """The piece with the most contrast."""
        return int(self.y.flatten(1).std(1).argmax())

    def _rule(self) -> float:
        channels = self.y.shape[1] if self.like.coupled else 1
        return (
            RULE * self.noise**POWER * (channels / 3) ** 0.5 * (1 if self.like.isotropic else 0.75)
        )

    def _risk(self, weight: float) -> tuple[float, Tensor]:
        """Return SURE, and the piece that is shown."""
        x = self._solved(self.y, self.mask, weight, self.starts[0])
        moved = PROBE * self.noise
        other = self._solved(self.y + moved * self.signs, self.mask, weight, self.starts[1])
        self.starts = (x, other)
        known = float(self.mask.expand_as(x).sum())
        fidelity = float((self.mask * (x - self.y)).square().sum()) / known
        divergence = float((self.signs * (other - x)).sum()) / (moved * known)
        return fidelity + self.noise**2 * (2 * divergence - 1), x[self._shown].clamp(0, 1)

    def _prediction_error(self) -> float:
        """Return the root of the mean square error at pixels that are left out."""
        left_out = self.mask * (self.chance < HELD_OUT)
        kept = self.mask - left_out
        if not bool(left_out.any()) or not bool(kept.flatten(1).any(1).all()):
            return self.noise
        x = self._solved(self.y * kept, kept, self._rule(), None)
        count = float(left_out.expand_as(x).sum())
        return (float((left_out * (x - self.y)).square().sum()) / count) ** 0.5

    def _solved(self, y: Tensor, mask: Tensor, weight: float, start: Tensor | None) -> Tensor:
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
        stop = gap(TOLERANCE, start_value=problem.value(problem.start()))
        start = problem.start(fill=True) if start is None else start
        found = solve(
            problem,
            self.method,
            start,
            iterations=ITERATIONS,
            stop=stop,
            check_every=20,
            fused=self.fused,
            progress=False,
        )
        assert isinstance(found.x, Tensor)
        return found.x


def _pieces(y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the image as a batch, or pieces of a large one from all over it, and which of their
    pixels are known.
    """
    known = (torch.ones_like(y[:1]) if mask is None else mask[:1]).to(y)
    height, width = y.shape[1:]
    if height * width <= PIECES * SIDE**2:
        return y.unsqueeze(0), known.unsqueeze(0)
    rows, columns = (2, 3) if width >= height else (3, 2)
    tall = min(SIDE, height)
    wide = min(SIDE, width)
    corners = [
        (round((height - tall) * (i + 0.5) / rows), round((width - wide) * (j + 0.5) / columns))
        for i in range(rows)
        for j in range(columns)
    ]

    def cut(image: Tensor) -> Tensor:
        return torch.stack(
            [image[:, top : top + tall, left : left + wide] for top, left in corners]
        )

    pieces = cut(y)
    parts = cut(known)
    seen = parts.flatten(1).any(1)
    if not bool(seen.any()):  # only outside the pieces is anything known
        return y.unsqueeze(0), known.unsqueeze(0)
    return pieces[seen], parts[seen]


def _vertex(left: float, middle: float, right: float) -> float:
    """Return where the parabola through values at −1, 0 and 1 is least, within half a step of 0.

    >>> _vertex(1.0, 0.0, 1.0), _vertex(2.0, 1.0, 1.0)
    (0.0, 0.5)
    """
    curvature = left - 2 * middle + right
    return min(0.5, max(-0.5, (left - right) / (2 * curvature))) if curvature > 0 else 0.0
