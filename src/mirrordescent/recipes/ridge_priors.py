"""Learning of priors: filters and profiles such that denoised pictures are close to clean ones.

The lower level is the denoising problem, the upper level the squared error of its solution. With
x̂ = argmin ½‖x − y‖² + R_θ(x) and the Hessian H of this energy at x̂, the implicit function theorem
gives

.. code-block:: none

    d loss/dθ = −⟨v, ∂∇R_θ(x̂)/∂θ⟩,    Hv = ∂loss/∂x̂

The lower level is solved by accelerated gradient steps, and Hv = … by conjugate gradients. Filters
begin with the tight frame of a discrete cosine transform, for which the energy is a well-known
good denoiser already.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import cast

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from mirrordescent import zoo
from mirrordescent._internal.dct import dct
from mirrordescent._internal.files import Damaged, read_whole, write_whole
from mirrordescent._internal.progress import ProgressBar
from mirrordescent.data import bsds500, pictures
from mirrordescent.learn.checkpoint import RunFolder
from mirrordescent.methods import PDHG
from mirrordescent.problems import (
    LearnedRidges,
    RidgePrior,
    RidgeProfile,
    RidgeTable,
    TVDenoising,
)
from mirrordescent.problems.filter_banks import responses, responses_adjoint
from mirrordescent.recipes.degraded_patches import (
    DEGRADATIONS,
    MARGIN,
    Degrade,
    DegradedPatches,
)
from mirrordescent.solving import solve
from mirrordescent.trees import dot, per_sample, sum_per_sample

BSDS_TERMS = (
    "The training part of BSDS500; its validation part for the validation. Published by "
    "UC Berkeley for non-commercial research and educational purposes. Cite Arbelaez, Maire, "
    "Fowlkes, Malik, TPAMI 33 (2011) 898-916. No picture is part of the entry."
)
"""Data of the shipped priors, and their terms."""
LEVELS = (0.005, 0.01, 0.02, 0.035, 0.06, 0.1, 0.2)
"""Noise levels at which profiles are learned."""
PIECES = 9
"""Number of pieces of every profile."""
CHECKED = (0.02, 0.05, 0.1)
"""Noise levels of the validation."""
CROP = 160
"""Side of the pictures of the validation."""
AVERAGING = 0.998
"""Decay of the running mean of all parameters, which is the result."""
TV_WEIGHTS = (1.4, 2.0, 2.8)
"""Weights of total variation that are tried for the comparison, in units of the noise level."""


WEAK_KINDS: tuple[Degrade, ...] = ("noise",)
"""Degradations from which weakly convex profiles are learned."""
CONVEX_KINDS: tuple[Degrade, ...] = ("noise", "holes", "holes", "blur", "blur")
"""Degradations from which convex profiles are learned; repeated ones are drawn more often."""
HARDER: dict[Degrade, float] = {"noise": 1.0, "holes": 2.5, "blur": 2.0}
"""Factors of the iterations of the lower level."""
VALIDATION_PICTURES = 8
"""Largest number of pictures of the validation."""


@dataclass(frozen=True)
class LearningRates:
    """First learning rates of filters and profiles."""

    filters: float = 2e-3
    profiles: float = 4e-2


LATER_RATES = LearningRates(filters=5e-4, profiles=2e-2)
"""First learning rates of runs that start from a learned prior."""


@dataclass(frozen=True)
class PatchBatch:
    """Number and side of the patches of a step."""

    count: int = 8
    side: int = 48


@dataclass(frozen=True)
class PriorSettings:
    """Settings of the learning of a prior.

    Args:
        channels: Number of channels: 3 for colour, 1 for grey pictures.
        minutes: Duration.
        convex_share: Share of the duration that is spent on the convex profiles. With 1, the weakly
            convex ones stay as they were at the start.
        modulus: Largest modulus ρ < 1 of weak convexity at the sampled frequencies.
        steepest: Largest slope of profiles. Larger slopes need more iterations.
        size: Side of the filters, an odd number.
        patches: Number and side of the patches of a step.
        iterations: Iterations of the lower level, and a multiple of them in the second half.
        solves: Iterations of conjugate gradients.
        rates: First learning rates.
        checks: Number of validations.
        seed: Seed of all random numbers.
    """

    channels: int = 3
    minutes: float = 65.0
    convex_share: float = 0.25
    modulus: float = 0.9
    steepest: float = 10.0
    size: int = 7
    patches: PatchBatch = field(default_factory=PatchBatch)
    iterations: int = 11
    solves: int = 7
    rates: LearningRates = field(default_factory=LearningRates)
    checks: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, got {self.channels}")
        if not 0 <= self.convex_share <= 1:
            raise ValueError(f"convex_share must lie between 0 and 1, got {self.convex_share}")
        if not 0 <= self.modulus < 1:
            raise ValueError(f"modulus must be at least 0 and less than 1, got {self.modulus}")
        if self.size % 2 == 0 or self.size < 3:
            raise ValueError(f"size must be odd and at least 3, got {self.size}")
        if self.patches.count < 1:
            raise ValueError(f"patches.count must be at least 1, got {self.patches.count}")
        if self.patches.side <= self.size + 2 * MARGIN:
            raise ValueError(
                f"patches.side must exceed size + {2 * MARGIN} = {self.size + 2 * MARGIN}, "
                f"got {self.patches.side}"
            )


class PriorParameters(nn.Module):
    """The parameters of filters and profiles, without constraints.

    Slopes are −ρ + (ρ + s)·sigmoid(θ) with θ = θₖⱼ + δ_lkj at the noise level l, so that they lie
    between −ρ and s for all θ. Scales are aₖ + ε_lk.

    Args:
        settings: Settings.
        modulus: ρ.
        filters: First filters; by default those of a discrete cosine transform.
        scales: First scales aₖ; by default the norms of the filters.
    """

    def __init__(
        self,
        settings: PriorSettings,
        modulus: float,
        filters: Tensor | None = None,
        scales: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.modulus = modulus
        self.steepest = settings.steepest
        first = cosine_filters(settings.channels, settings.size)
        sizes = first.flatten(1).norm(dim=1) * settings.size
        if filters is None:
            generator = torch.Generator().manual_seed(settings.seed)
            filters = first + 0.002 * torch.randn(first.shape, generator=generator)
        self.raw = nn.Parameter(filters.clone())
        self.shapes = nn.Parameter(_first_shapes(modulus, self.steepest).repeat(len(first), 1))
        self.shape_changes = nn.Parameter(torch.zeros(len(LEVELS), len(first), PIECES))
        self.scales = nn.Parameter(sizes.log() if scales is None else scales.clone())
        self.scale_changes = nn.Parameter(torch.zeros(len(LEVELS), len(first)))
        nodes = torch.logspace(math.log10(0.25), math.log10(20.0), PIECES) / settings.size
        self.register_buffer("nodes", nodes)
        self.register_buffer("levels", torch.tensor(LEVELS))

    nodes: Tensor
    levels: Tensor

    @torch.no_grad()
    def start_from(self, filters: Tensor, table: RidgeTable) -> None:
        """Set the parameters so that they give the filters and profiles of a learned prior."""
        shape = (len(self.levels), *self.shapes.shape)
        if filters.shape != self.raw.shape or table.heights.shape != shape:
            raise ValueError(
                f"the prior to start from must have filters of shape {tuple(self.raw.shape)} and "
                f"profiles of shape {shape}, got {tuple(filters.shape)} and "
                f"{tuple(table.heights.shape)}"
            )
        self.raw.copy_(filters)
        self.levels.copy_(table.levels)
        self.nodes.copy_(table.nodes)
        widths = torch.cat([self.nodes[:1], self.nodes.diff()])
        heights = F.pad(table.heights, (1, 0))
        range_ = self.modulus + self.steepest
        shares = (heights.diff(dim=-1) / widths + self.modulus) / range_
        shapes = shares.clamp(1e-4, 1 - 1e-4).logit()
        self.shapes.copy_(shapes.mean(0))
        self.shape_changes.copy_(shapes - self.shapes)
        self.scales.copy_(table.scales.mean(0))
        self.scale_changes.copy_(table.scales - self.scales)

    def filters(self) -> Tensor:
        """Return filters with mean 0 whose symbol is at most 1 at sampled frequencies."""
        centred = self.raw - self.raw.mean((-2, -1), keepdim=True)
        number = 4 * (self.raw.shape[-1] + 1)
        spectrum = torch.fft.rfft2(centred, s=(number, number))
        symbol = torch.einsum("kcij,kdij->ijcd", spectrum.conj(), spectrum)
        return centred / torch.linalg.eigvalsh(symbol)[..., -1].max().sqrt()

    def table(self) -> RidgeTable:
        """Return the profiles at all levels."""
        shapes = self.shapes + self.shape_changes
        slopes = -self.modulus + (self.modulus + self.steepest) * shapes.sigmoid()
        widths = torch.cat([self.nodes[:1], self.nodes.diff()])
        heights = (slopes * widths).cumsum(-1)
        scales = self.scales + self.scale_changes
        return RidgeTable(self.levels, scales, self.nodes, heights)


def cosine_filters(channels: int, size: int) -> Tensor:
    """Return the zero-mean filters of a discrete cosine transform, a tight frame.

    Colour pictures have filters of all frequencies for the mean of the channels, and filters of
    3 × 3 for two differences of channels, where photographs have little detail.
    """
    luminance = _frame(size, size)
    if channels == 1:
        return luminance.unsqueeze(1)
    directions = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]])
    directions = directions / directions.norm(dim=1, keepdim=True)
    differences = _frame(3, size)
    parts = [(luminance, directions[0]), (differences, directions[1]), (differences, directions[2])]
    return torch.cat([part.unsqueeze(1) * to.reshape(1, 3, 1, 1) for part, to in parts])


def _frame(size: int, padded: int) -> Tensor:
    """Return the non-constant products of cosines of a size, padded with 0: (count, n, n)."""
    along = dct(size, size, torch.float32, torch.device("cpu"))
    frame = torch.einsum("ai,bj->abij", along, along).flatten(0, 1)[1:] / size
    border = (padded - size) // 2
    return F.pad(frame, (border,) * 4)


def _first_shapes(modulus: float, steepest: float) -> Tensor:
    """Return θ of a profile that rises near 0 and falls slowly beyond the noise."""
    if modulus:
        slopes = torch.tensor([3.0, 3.0, 1.8, 0.3, -0.1, -0.2, -0.15, -0.05, 0.0])
    else:
        slopes = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.3, 0.15, 0.1, 0.05, 0.02])
    return ((slopes + modulus).clamp(min=0.02) / (steepest - slopes)).log()


# The lower level.


def denoise(y: Tensor, filters: Tensor, profile: RidgeProfile, iterations: int) -> Tensor:
    """Return ½‖x − y‖² + Σφ(Wx) minimised by accelerated gradient steps with restarts.

    Filters must have a norm of at most 1.
    """
    return restore_patches(lambda x: x, y, y, filters, profile, iterations)


def restore_patches(
    normal: Callable[[Tensor], Tensor],
    right: Tensor,
    start: Tensor,
    filters: Tensor,
    profile: RidgeProfile,
    iterations: int,
) -> Tensor:
    """Return ½⟨x, Hx⟩ − ⟨b, x⟩ + Σφ(Wx) minimised by accelerated gradient steps with restarts.

    Args:
        normal: The map x ↦ Hx, with a norm of at most about 1.
        right: b.
        start: First point.
        filters: Filters with a norm of at most 1.
        profile: Profiles, the same for all patches or one for each.
        iterations: Number of steps.
    """
    term = LearnedRidges(filters, profile)
    steepest = profile.slopes().flatten(1).amax(-1) if profile.values.ndim == 3 else None
    if steepest is None:
        steepest = profile.slopes().max().expand(len(start))
    length = per_sample(1 / (1 + steepest.clamp(min=0)), start)
    x = start
    ahead = start
    theta = torch.ones_like(length)
    for _ in range(iterations):
        g = term.add_gradient(normal(ahead) - right, ahead, 0.0)
        new = ahead - length * g
        change = new - x
        theta = torch.where(per_sample(dot(g, change), start) > 0, 1.0, theta)
        grown = (1 + (1 + 4 * theta.square()).sqrt()) / 2
        ahead = new + (theta - 1) / grown * change
        x = new
        theta = grown
    return x


def solve_hessian(
    normal: Callable[[Tensor], Tensor],
    x: Tensor,
    right: Tensor,
    filters: Tensor,
    profile: RidgeProfile,
    iterations: int,
) -> Tensor:
    """Return (H + Wᵀ diag(φ″(Wx)) W)⁻¹ applied to ``right``, by conjugate gradients."""
    curvature = profile.curvature(responses(x, filters))
    v = torch.zeros_like(right)
    residual = right
    direction = right
    square = dot(residual, residual)
    tiny = torch.finfo(right.dtype).tiny
    for _ in range(iterations):
        image = responses_adjoint(curvature * responses(direction, filters), filters)
        image = image + normal(direction)
        length = per_sample(square / dot(direction, image).clamp(min=tiny), v)
        v = v + length * direction
        residual = residual - length * image
        smaller = dot(residual, residual)
        direction = residual + per_sample(smaller / square.clamp(min=tiny), v) * direction
        square = smaller
    return v


def backpropagate(
    patches: DegradedPatches, parameters: PriorParameters, rounds: tuple[int, int]
) -> Tensor:
    """Add the gradient of the loss to all parameters, and return the squared errors (batch,).

    The loss is the mean of ½ log(e + e₀/2) over the patches, with their mean squared errors e and
    the error e₀ of a typical picture. So all degradations count alike, and flat patches do not
    dominate.

    Args:
        patches: Degraded patches.
        parameters: Filters and profiles.
        rounds: Iterations of the lower level and of conjugate gradients.
    """
    filters = parameters.filters()
    profile = parameters.table().at(patches.sigma)
    with torch.no_grad():
        fixed = RidgeProfile(profile.positions.detach(), profile.values.detach())
        bank = filters.detach()
        start = patches.start
        x = restore_patches(patches.normal, patches.right, start, bank, fixed, rounds[0])
        error = (x - patches.clean) * patches.counted
        count = patches.counted.sum((1, 2, 3)) * x.shape[1]
        square = sum_per_sample(error.square()) / count
        scale = 1 / ((square + patches.typical / 2) * count * len(x))
        v = per_sample(scale, error) * error
        v = solve_hessian(patches.normal, x, v, bank, fixed, rounds[1])
    pull = responses(v, filters) * profile.derivative(responses(x, filters))
    torch.autograd.backward([-pull.sum()])
    return square


# Learning.


class Patches:
    """Random patches of pictures, turned and mirrored at random."""

    def __init__(self, pictures: Sequence[Tensor], settings: PriorSettings) -> None:
        side = settings.patches.side
        self.pictures = [each for each in pictures if min(each.shape[-2:]) > side]
        if not self.pictures:
            raise ValueError(f"learning a prior needs pictures of more than {side} pixels a side")
        self.settings = settings

    def draw(self, generator: Generator) -> Tensor:
        """Return a batch of patches."""
        side = self.settings.patches.side
        patches = []
        for _ in range(self.settings.patches.count):
            picture = self.pictures[_whole(len(self.pictures), generator)]
            row = _whole(picture.shape[-2] - side + 1, generator)
            column = _whole(picture.shape[-1] - side + 1, generator)
            patch = picture[:, row : row + side, column : column + side].float() / 255
            turns = _whole(4, generator)
            patch = patch.rot90(turns, (-2, -1))
            patches.append(patch.flip(-1) if _whole(2, generator) else patch)
        return torch.stack(patches)


class PriorLearning:
    """Learn a prior from pictures. A run that was interrupted continues.

    Args:
        pictures: Pictures for learning, (channels, height, width) each, from 0 to 1.
        held_out: Pictures for the validation.
        settings: Settings.
        folder: Folder for checkpoints and the log.
        resume: Whether to continue a run that is found in the folder.
        start: Prior to start from; None for filters of a discrete cosine transform.
    """

    def __init__(
        self,
        pictures: Sequence[Tensor],
        held_out: Sequence[Tensor],
        settings: PriorSettings,
        folder: Path,
        resume: bool = True,
        start: RidgePrior | None = None,
    ) -> None:
        self.settings = settings
        self.start = start
        self.patches = Patches([_bytes(each, settings.channels) for each in pictures], settings)
        self.crops = _central_crops(held_out, settings)
        self.folder = RunFolder(folder)
        self.file = Path(folder) / "prior.safetensors"
        if not resume:
            self.file.unlink(missing_ok=True)

    def run(self, progress: bool | None = None) -> tuple[RidgePrior, list[dict[str, object]]]:
        """Return the prior, and the records of the two stages."""
        with self.folder.lock():
            parameters = PriorParameters(self.settings, self.settings.modulus)
            if self.start is not None:
                parameters.start_from(self.start.filters, self.start.weak)
            weak, weak_record = self._stage("weak", parameters, progress)
            filters = weak.filters().detach()
            parameters = PriorParameters(self.settings, 0.0, filters, weak.scales.detach())
            if self.start is not None and self.start.convex is not None:
                parameters.start_from(self.start.convex_bank, self.start.convex)
            convex, convex_record = self._stage("convex", parameters, progress)
        for sigma, value in validate_total_variation(self.crops).items():
            for record in (weak_record, convex_record):
                cast("dict[str, dict[str, float]]", record["validation"])[sigma]["tv"] = value
        with torch.no_grad():
            bank = convex.filters().detach()
            prior = RidgePrior(filters, weak.table(), convex.table(), bank)
            if self.start is not None and self.settings.convex_share == 1:
                # As they were, without the rounding of their parameters.
                prior = RidgePrior(self.start.filters, self.start.weak, convex.table(), bank)
        return prior.requires_grad_(False), [weak_record, convex_record]

    def _stage(
        self,
        name: str,
        parameters: PriorParameters,
        progress: bool | None,
    ) -> tuple[PriorParameters, dict[str, object]]:
        """Learn some parameters for a share of the time; return their running means.

        The weakly convex profiles learn to denoise. The convex ones also learn to fill holes and to
        undo blur, for which they are used.
        """
        settings = self.settings
        share_of_time = settings.convex_share if name == "convex" else 1 - settings.convex_share
        total = 60 * settings.minutes * share_of_time
        kinds = CONVEX_KINDS if name == "convex" else WEAK_KINDS
        optimiser = torch.optim.Adam(_groups(parameters, settings), betas=(0.9, 0.99))
        first_rates = [group["lr"] for group in optimiser.param_groups]
        mean = {key: value.detach().clone() for key, value in parameters.state_dict().items()}
        state = self._load(name, parameters, optimiser, mean)
        record: dict[str, object] = {"stage": name, "settings": asdict(settings)}
        generator = torch.Generator().manual_seed(settings.seed + 1 + state.steps)
        checked = state.seconds
        with ProgressBar(f"learning the {name} profiles", int(total), progress) as bar:
            while state.seconds < total:
                began = perf_counter()
                share = state.seconds / total
                warm = min(1.0, (state.steps + 1) / 50)
                factor = warm * (0.02 + 0.49 * (1 + math.cos(math.pi * share)))
                for group, rate in zip(optimiser.param_groups, first_rates, strict=True):
                    group["lr"] = rate * factor
                kind = kinds[_whole(len(kinds), generator)]
                degraded = DEGRADATIONS[kind](self.patches.draw(generator), generator)
                more = HARDER[kind] * (1.0 if share < 0.5 else 1.4)
                rounds = (
                    int(more * settings.iterations),
                    int(HARDER[kind] ** 0.5 * settings.solves),
                )
                optimiser.zero_grad()
                backpropagate(degraded, parameters, rounds)
                optimiser.step()
                state.steps += 1
                decay = min(AVERAGING, (state.steps + 1) / (state.steps + 10))
                for key, value in parameters.state_dict().items():
                    mean[key].lerp_(value.detach(), 1 - decay)
                state.seconds += perf_counter() - began
                bar.update(int(min(state.seconds, total)), f"{state.steps} steps")
                if state.seconds - checked > total / settings.checks:
                    checked = state.seconds
                    self._save(name, parameters, optimiser, mean, state)
                    self._log(name, state, _with_state(parameters, mean))
        self._save(name, parameters, optimiser, mean, state)
        averaged = _with_state(parameters, mean)
        record["steps"] = state.steps
        record["seconds"] = round(state.seconds)
        record["validation"] = self._log(name, state, averaged)
        return averaged, record

    def _log(
        self, stage: str, state: _Progress, parameters: PriorParameters
    ) -> dict[str, dict[str, float]]:
        """Measure the validation, append it to the log, and return it."""
        with torch.no_grad():
            results = validate(self.crops, parameters.filters(), parameters.table())
            if stage == "convex":
                half = self.crops[: (len(self.crops) + 1) // 2]
                results |= validate_restoration(half, parameters.filters(), parameters.table())
        line = {"stage": stage, "steps": state.steps, "seconds": round(state.seconds)}
        with (self.folder.path / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps({**line, "psnr": results}) + "\n")
        return results

    def _save(
        self,
        stage: str,
        parameters: PriorParameters,
        optimiser: torch.optim.Optimizer,
        mean: dict[str, Tensor],
        state: _Progress,
    ) -> None:
        """Write a checkpoint of this stage, beside those of other stages."""
        tensors, metadata = self._stored()
        for key, value in parameters.state_dict().items():
            tensors[f"{stage}.value.{key}"] = value
            tensors[f"{stage}.mean.{key}"] = mean[key]
        for index, moments in optimiser.state_dict()["state"].items():
            for key, value in moments.items():
                tensors[f"{stage}.moment.{index}.{key}"] = value
        metadata["settings"] = json.dumps(asdict(self.settings))
        metadata[stage] = json.dumps({"steps": state.steps, "seconds": state.seconds})
        write_whole(tensors, metadata, self.file)

    def _load(
        self,
        stage: str,
        parameters: PriorParameters,
        optimiser: torch.optim.Optimizer,
        mean: dict[str, Tensor],
    ) -> _Progress:
        """Restore the last checkpoint of this stage, if there is one."""
        tensors, metadata = self._stored()
        if stage not in metadata:
            return _Progress()
        if json.loads(metadata["settings"]) != asdict(self.settings):
            raise ValueError(
                f"{self.file} was written with other settings: "
                "give the same settings, another folder, or --no-resume"
            )
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            of, _, rest = name.partition(".")
            kind, _, key = rest.partition(".")
            if of != stage:
                continue
            if kind == "mean":
                mean[key].copy_(value)
            elif kind == "moment":
                index, _, field = key.partition(".")
                moments.setdefault(int(index), {})[field] = value
        values = {key: tensors[f"{stage}.value.{key}"] for key in parameters.state_dict()}
        parameters.load_state_dict(values)
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": moments, "param_groups": groups})
        return _Progress(**json.loads(metadata[stage]))

    def _stored(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the tensors and the metadata of the checkpoint, empty if there is none."""
        if not self.file.exists():
            return {}, {}
        try:
            tensors, metadata = read_whole(self.file)
        except Damaged as error:
            raise ValueError(f"{error}: delete it, or use --no-resume") from error
        metadata.pop("sha256", None)
        return tensors, metadata


@dataclass
class _Progress:
    """Steps and seconds of a stage so far."""

    steps: int = 0
    seconds: float = 0.0


def validate(
    crops: Tensor, filters: Tensor, table: RidgeTable, iterations: int = 30
) -> dict[str, dict[str, float]]:
    """Return the PSNR of noisy and denoised crops by noise level, in decibels."""
    results: dict[str, dict[str, float]] = {}
    border = max(filters.shape[-2:]) - 1
    for sigma in CHECKED:
        noisy = add_noise(crops, sigma)
        padded = F.pad(noisy, (border,) * 4, mode="reflect")
        profile = table.at(sigma)
        denoised = [denoise(each.unsqueeze(0), filters, profile, iterations) for each in padded]
        inner = (..., slice(border, -border), slice(border, -border))
        results[str(sigma)] = {
            "noisy": psnr(noisy, crops),
            "prior": psnr(torch.cat(denoised)[inner], crops),
        }
    return results


def validate_restoration(
    crops: Tensor, filters: Tensor, table: RidgeTable, iterations: int = 60
) -> dict[str, dict[str, float]]:
    """Return the PSNR of crops with filled holes and of sharpened crops, in decibels.

    The degradations are those of learning, with other random numbers.
    """
    results: dict[str, dict[str, float]] = {}
    for kind in ("holes", "blur"):
        degraded = DEGRADATIONS[kind](crops, torch.Generator().manual_seed(2))
        values = {"start": degraded.start}
        profile = table.at(degraded.sigma)
        values["prior"] = restore_patches(
            degraded.normal, degraded.right, degraded.start, filters, profile, iterations
        )
        count = degraded.counted.sum((1, 2, 3)) * crops.shape[1]
        results[kind] = {}
        for name, x in values.items():
            square = sum_per_sample(((x - crops) * degraded.counted).square()) / count
            results[kind][name] = round(float((-10 * square.log10()).mean()), 3)
    return results


def validate_total_variation(crops: Tensor) -> dict[str, float]:
    """Return the PSNR of total variation by noise level, for comparison with :func:`validate`.

    It is isotropic and couples the channels, with the best of a few weights.
    """
    results: dict[str, float] = {}
    for sigma in CHECKED:
        noisy = add_noise(crops, sigma)
        results[str(sigma)] = max(
            psnr(_total_variation(noisy, weight * sigma), crops) for weight in TV_WEIGHTS
        )
    return results


def add_noise(crops: Tensor, sigma: float) -> Tensor:
    """Return crops with the noise of the validation."""
    generator = torch.Generator().manual_seed(2)
    return crops + sigma * torch.randn(crops.shape, generator=generator)


def _total_variation(noisy: Tensor, weight: float) -> Tensor:
    problem = TVDenoising(noisy, weight, scale=0.5, isotropic=True, coupled=True)
    solution = solve(problem, PDHG(), iterations=60, check_every=60, progress=False)
    assert isinstance(solution.x, Tensor)
    return solution.x


def psnr(x: Tensor, clean: Tensor) -> float:
    """Return the mean peak signal-to-noise ratio of pictures from 0 to 1, in decibels."""
    square = (x.clamp(0, 1) - clean).square().mean((1, 2, 3))
    return round(float((-10 * square.clamp(min=1e-10).log10()).mean()), 3)


def _groups(parameters: PriorParameters, settings: PriorSettings) -> list[dict[str, object]]:
    """Return the groups of the optimiser, with their first learning rates."""
    rates = {
        "raw": settings.rates.filters,
        "shapes": settings.rates.profiles,
        "shape_changes": 0.5 * settings.rates.profiles,
        "scales": 0.3 * settings.rates.profiles,
        "scale_changes": 0.15 * settings.rates.profiles,
    }
    named = parameters.named_parameters()
    return [{"params": [parameter], "lr": rates[name]} for name, parameter in named]


def _with_state(parameters: PriorParameters, state: dict[str, Tensor]) -> PriorParameters:
    """Return a copy of the parameters with other values."""
    other = copy.deepcopy(parameters)
    other.load_state_dict(state)
    return other.requires_grad_(False)


def _whole(limit: int, generator: Generator) -> int:
    """Return a random whole number from 0 to limit − 1."""
    return int(torch.randint(limit, (1,), generator=generator))


def _bytes(picture: Tensor, channels: int) -> Tensor:
    """Return a picture in the range from 0 to 255, which takes a quarter of the memory."""
    if channels == 1:
        weights = torch.tensor([0.299, 0.587, 0.114]).reshape(3, 1, 1)
        picture = (weights * picture).sum(0, keepdim=True)
    return (255 * picture).round().clamp(0, 255).to(torch.uint8)


def _central_crops(pictures: Sequence[Tensor], settings: PriorSettings) -> Tensor:
    """Return crops of one size from the centre of pictures."""
    smallest = min(min(picture.shape[-2:]) for picture in pictures)
    side = min(CROP, smallest)
    if side <= settings.size:
        raise ValueError(
            f"pictures of the validation must have more than {settings.size} pixels a side"
        )
    crops = []
    for picture in pictures[:VALIDATION_PICTURES]:
        row = (picture.shape[-2] - side) // 2
        column = (picture.shape[-1] - side) // 2
        whole = _bytes(picture, settings.channels)
        crops.append(whole[:, row : row + side, column : column + side].float() / 255)
    return torch.stack(crops)


# Entries of the zoo.


def learn_from(
    source: str,
    out: Path,
    folder: Path,
    settings: PriorSettings,
    *,
    resume: bool = True,
    start: RidgePrior | None = None,
    directory: Path | None = None,
    progress: bool | None = None,
) -> tuple[Path, dict[str, dict[str, float]]]:
    """Learn a prior from pictures and save it.

    Args:
        source: "bsds500", or a folder or an archive of pictures. The validation part of BSDS500
            is used for the validation, and its test part is not read.
        out: File of the entry, with or without suffix.
        folder: Folder for checkpoints and the log.
        settings: Settings.
        resume: Whether to continue an interrupted run.
        start: Prior to start from.
        directory: Folder of the data sets.
        progress: Whether to show a progress bar.

    Returns:
        The file, and the PSNR of the validation by noise level.
    """
    if source == "bsds500":
        training = bsds500("train", directory)
        held_out = bsds500("val", directory)
        terms = BSDS_TERMS
    else:
        training = pictures(source, "train", directory)
        held_out = pictures(source, "test", directory)
        terms = f"{len(training) + len(held_out)} pictures of {Path(source).name}"
    learning = PriorLearning(training, held_out, settings, folder, resume, start)
    prior, stages = learning.run(progress)
    path = zoo.save(prior, out, prior_card(Path(out).name, prior, stages, terms))
    return path, cast("dict[str, dict[str, float]]", stages[0]["validation"])


def prior_card(
    name: str, prior: RidgePrior, stages: Sequence[dict[str, object]], terms: str
) -> zoo.Card:
    """Return the card of a prior."""
    energy = prior.term(CHECKED[1])
    return zoo.Card(
        name.partition("@")[0],
        prior_description(prior.channels),
        family=prior_family(prior.channels),
        data=terms,
        stages=list(stages),
        parameters=sum(buffer.numel() for buffer in prior.buffers()),
        held_out={str(stage["stage"]): stage["validation"] for stage in stages},
        use={"strong convexity of denoising": round(1 + energy.convexity, 4)},
    )


def prior_description(channels: int) -> str:
    """Return the description of a prior for its card."""
    kind = _kind(channels)
    return f"A prior of {kind} pictures from 0 to 1, for all noise levels up to {LEVELS[-1]:g}."


def prior_family(channels: int) -> str:
    """Return the description of the problems of a prior for its card."""
    return f"denoising of {_kind(channels)} pictures with Gaussian noise"


def _kind(channels: int) -> str:
    return "grey" if channels == 1 else "colour"
