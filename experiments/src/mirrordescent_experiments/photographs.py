"""Restored photographs beside what else can be installed: BM3D, biharmonic filling, and TV.

One photograph is measured at a time, and every result is written to a file at once, so that an
interrupted run continues. The quick and the standard scale use validation photographs. Only the
scale "paper" reads the test part, which is to be looked at once.

Results of the priors are kept until a prior changes, and those of learned steps until they change.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent import data, zoo
from mirrordescent._internal import cache
from mirrordescent._internal.files import whole
from mirrordescent.data.random_masks import blocks, scratches, writing
from mirrordescent.methods import TangentBound
from mirrordescent.problems import gaussian_kernel, motion_kernel
from mirrordescent.recipes.noise_estimator import NoisyCase, compressed_case, plain_case, to_grey
from mirrordescent.restore.deciding import DEBLURRING, FIRST_BOUND, prior_objective
from mirrordescent.restore.degradation import Degradation
from mirrordescent.restore.noise import estimate_noise
from mirrordescent.restore.prior_objective import PriorObjective
from mirrordescent.restore.request import Request
from mirrordescent.restore.weight import POWER, RULE
from mirrordescent_experiments.result import Claim, Result, Table
from mirrordescent_experiments.scales import Say, Scale

COUNTS: dict[Scale, int] = {"quick": 1, "standard": 20, "paper": 20}
PLACES = 20
"""Number of photographs among which the first are taken, evenly spaced in their part."""
SIDES: dict[Scale, int] = {"quick": 32, "standard": 160, "paper": 160}
PARTS: dict[Scale, str] = {"quick": "validation", "standard": "validation", "paper": "test"}
QUICK_CASES = 1
"""Number of cases of every task at the quick scale, for colour only."""
LEVELS = (0.02, 0.05, 0.1)
"""Noise levels of denoising."""
BLURRED_NOISE = 0.01
"""Noise level of deblurring."""
WEIGHT_FACTORS = (0.3, 0.5, 0.7, 1.0, 1.4, 2.0)
"""Weights of total variation from which the best is taken, relative to that of the default."""
TOLERANCE = 1e-3
"""Relative gap that learned steps and their controls prove."""
ESTIMATED_SIDES = (48, 64, 96, 160)
"""Sides of the crops whose noise is estimated, beside the whole photograph."""
SMALLEST_SIDE = 64
"""Least side of the crops that count for the claims about noise estimates."""
QUALITIES = (60, 75, 85, 95)
"""Qualities of JPEG files whose noise is estimated."""
PRIORS = ("photo-prior", "photo-prior-grey")
"""Entries on which restored photographs depend."""
STEPS = {
    "denoise": "photo-prior-denoise",
    "inpaint": "photo-prior-inpaint",
    "deblur": "photo-prior-deblur",
}
"""Entries of the learned steps."""
VARIATION = "image-tv-isotropic"
"""Entry of the learned method for total variation."""
CONTROL = "-control"
LEARNED = "learned"
CONTROLLED = "control"
INPUT = "input"
OURS = "prior, σ given"
OURS_BLIND = "prior, blind"
TV = "TV, σ given"
TV_BLIND = "TV, blind"
BM3D = "BM3D, σ given"
TV_BEST = "TV, best weight"
TV_DEFAULT = "TV"
DEFAULT = "default"
BIHARMONIC = "biharmonic"


@dataclass(frozen=True)
class Case:
    """A damaged photograph, and the contestants that restore it.

    Args:
        name: Name of the damage, such as "denoise 0.05".
        clean: The photograph, (channels, height, width).
        counted: 1 at pixels whose error counts, (1, height, width).
        contestants: Functions that return a restored photograph, by name.
    """

    name: str
    clean: Tensor
    counted: Tensor
    contestants: Mapping[str, Callable[[], Tensor]]


class Records:
    """Results that have been measured, kept in a file.

    Args:
        path: File, or None to keep nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: dict[str, dict[str, float]] = {}
        if path is not None and path.exists():
            self.found = json.loads(path.read_text(encoding="utf-8"))

    def measure(self, key: str, compute: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Return a result, measured now or before."""
        if key not in self.found:
            self.found[key] = compute()
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with whole(self.path) as partial:
                    partial.write_text(json.dumps(self.found, indent=0), encoding="utf-8")
        return self.found[key]


def decibels(x: Tensor, case: Case) -> float:
    """Return the PSNR at the pixels that count."""
    error = (x.clamp(0, 1) - case.clean).square() * case.counted
    mean = float(error.sum() / (case.counted.sum() * len(case.clean)))
    return -10 * float(np.log10(max(mean, 1e-12)))


def denoising_cases(clean: Tensor, seed: int) -> Iterator[Case]:
    """Yield the photograph with noise of all levels."""
    everywhere = torch.ones_like(clean[:1])
    for level in LEVELS:
        y = clean + level * _noise(clean, seed)
        contestants = {
            INPUT: partial(_as_given, y),
            OURS: partial(md.denoise, y, noise=level, prior="photo"),
            OURS_BLIND: partial(md.denoise, y),
            TV: partial(md.denoise, y, noise=level, prior="tv"),
            TV_BLIND: partial(md.denoise, y, prior="tv"),
        }
        if find_spec("bm3d") is not None:
            contestants[BM3D] = partial(bm3d_denoise, y, level)
        yield Case(f"denoise {level:g}", clean, everywhere, contestants)


def bm3d_denoise(y: Tensor, level: float) -> Tensor:
    """Return a photograph denoised by the package bm3d, with colour BM3D for three channels."""
    import bm3d

    if len(y) == 1:
        return torch.from_numpy(bm3d.bm3d(y[0].numpy(), level)).float().reshape(y.shape)
    found = bm3d.bm3d_rgb(y.permute(1, 2, 0).numpy(), level)
    return torch.from_numpy(np.asarray(found)).float().permute(2, 0, 1)


def inpainting_cases(clean: Tensor, seed: int) -> Iterator[Case]:
    """Yield the photograph with missing pixels of four kinds, without noise."""
    side = clean.shape[-1]
    shapes: dict[str, Callable[[torch.Generator], Tensor]] = {
        "text": lambda generator: writing(side, generator),
        "scratches": lambda generator: scratches(side, generator),
        "30 % random": lambda generator: torch.rand(side, side, generator=generator) >= 0.3,
        "blocks": lambda generator: blocks(side, generator),
    }
    for number, (kind, shape) in enumerate(shapes.items()):
        known = shape(torch.Generator().manual_seed(1000 * number + seed)).bool()
        known[0, 0] = True
        known[side // 2, side // 2] = False  # a mask without holes has no error that counts
        mask = known.unsqueeze(0)
        y = clean * mask
        contestants = {
            INPUT: partial(_as_given, y),
            DEFAULT: partial(md.inpaint, y, mask),
            TV_DEFAULT: partial(md.inpaint, y, mask, prior="tv"),
            BIHARMONIC: partial(biharmonic, y, ~known),
        }
        yield Case(f"inpaint {kind}", clean, (~mask).to(clean), contestants)


def biharmonic(y: Tensor, missing: Tensor) -> Tensor:
    """Return a photograph filled by ``skimage.restoration.inpaint_biharmonic``."""
    from skimage.restoration import inpaint_biharmonic

    pixels = y.permute(1, 2, 0).numpy()
    filled = inpaint_biharmonic(pixels, missing.numpy(), channel_axis=-1)
    return torch.from_numpy(filled).float().permute(2, 0, 1)


def deblurring_cases(clean: Tensor, seed: int) -> Iterator[Case]:
    """Yield the blurred and noisy photograph.

    Pixels whose kernel reaches beyond the border do not count.
    """
    kernels = {"Gaussian 1.6": gaussian_kernel(1.6), "motion 9": motion_kernel(9, 0)}
    for name, kernel in kernels.items():
        border = max(kernel.shape) // 2
        y = blurred(clean, kernel) + BLURRED_NOISE * _noise(clean, seed)
        counted = torch.zeros_like(clean[:1])
        counted[:, border:-border, border:-border] = 1
        restored = partial(md.deblur, y, kernel, noise=BLURRED_NOISE)
        contestants = {
            INPUT: partial(_as_given, y),
            DEFAULT: restored,
            TV_DEFAULT: partial(restored, prior="tv"),
            TV_BEST: partial(best_variation, y, kernel, Case(name, clean, counted, {})),
        }
        yield Case(f"deblur {name}", clean, counted, contestants)


def blurred(clean: Tensor, kernel: Tensor) -> Tensor:
    """Return a blurred photograph, which is continued by reflection."""
    rows, columns = kernel.shape
    bank = kernel.flip(0, 1).reshape(1, 1, rows, columns)
    sides = (columns // 2, columns // 2, rows // 2, rows // 2)
    return F.conv2d(F.pad(clean.unsqueeze(1), sides, mode="reflect"), bank).squeeze(1)


def best_variation(y: Tensor, kernel: Tensor, case: Case) -> Tensor:
    """Return the result of total variation with the weight that is best for this photograph."""
    weight = DEBLURRING * RULE * BLURRED_NOISE**POWER
    tried = [md.deblur(y, kernel, weight=factor * weight, prior="tv") for factor in WEIGHT_FACTORS]
    return max(tried, key=partial(decibels, case=case))


def step_problems(clean: Tensor, seed: int) -> Iterator[tuple[str, str, PriorObjective]]:
    """Yield tasks and objectives with the learned prior, with the name of the damage."""
    prior = data_prior(len(clean))
    for level in LEVELS:
        y = clean + level * _noise(clean, seed)
        request = Request("denoise", noise=level)
        yield (
            "denoise",
            f"denoise {level:g}",
            prior_objective(y.unsqueeze(0), None, request, [level], prior),
        )
    known = torch.rand(clean.shape[1:], generator=torch.Generator().manual_seed(seed)) >= 0.3
    mask = known.to(clean).reshape(1, 1, *known.shape)
    yield (
        "inpaint",
        "inpaint 30 % random",
        prior_objective(mask * clean, mask, Request("inpaint"), [0.0], prior),
    )
    kernel = gaussian_kernel(1.6)
    y = blurred(clean, kernel) + BLURRED_NOISE * _noise(clean, seed)
    request = Request("deblur", degradation=Degradation(kernel))
    yield (
        "deblur",
        "deblur Gaussian 1.6",
        prior_objective(y.unsqueeze(0), None, request, [BLURRED_NOISE], prior),
    )


def data_prior(channels: int) -> md.problems.RidgePrior:
    """Return the shipped prior for photographs of 3 channels or 1 channel."""
    prior = zoo.load(PRIORS[0] if channels == 3 else PRIORS[1])
    assert isinstance(prior, md.problems.RidgePrior)
    return prior


def steps_of_proof(objective: PriorObjective, entry: str) -> dict[str, float]:
    """Return the number of steps until learned steps have proven the gap."""
    learned = zoo.load(entry)
    assert isinstance(learned, TangentBound)
    method = TangentBound(learned.method, FIRST_BOUND, within=TOLERANCE)
    found = md.solve(
        objective.problem(),
        method,
        objective.start(),
        iterations=1000,
        check_every=1,
        stop=md.gap(TOLERANCE),
    )
    return {
        "steps": int(found.steps),
        "converged": float(found.statuses[0] == md.Status.CONVERGED),
    }


def noise_estimates(
    whole_photograph: Tensor, seed: int
) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """Yield measurements of noise estimates: the estimate, the truth, and whether it is certain.

    The truth is the root mean square difference to the clean picture, compressed alike. Crops are
    taken from the middle. JPEG files of one photograph have one quality for every crop and level.
    """
    height, width = whole_photograph.shape[1:]
    count = 0
    for side in (*ESTIMATED_SIDES, max(height, width)):
        top = max(0, (height - side) // 2)
        left = max(0, (width - side) // 2)
        crop = whole_photograph[:, top : top + side, left : left + side].contiguous()
        size = f"{side}²" if side in ESTIMATED_SIDES else "whole"
        for level in LEVELS:
            quality = QUALITIES[(seed + count) % len(QUALITIES)]
            count += 1
            yield f"plain {size} {level:g}", partial(_estimated, crop, level, seed, None, 0)
            for subsampling in (2, 0) if len(crop) == 3 else (0,):
                colours = "4:2:0" if subsampling else "4:4:4"
                name = f"JPEG {quality} {colours} {size} {level:g}"
                yield name, partial(_estimated, crop, level, seed, quality, subsampling)


def _estimated(
    clean: Tensor, level: float, seed: int, quality: int | None, subsampling: int
) -> dict[str, float]:
    """Return the estimate of the noise of a file."""
    generator = torch.Generator().manual_seed(seed)
    case: NoisyCase
    if quality is None:
        case = plain_case(clean, level, generator)
    else:
        case = compressed_case(clean, level, quality, subsampling, generator)
    (found,) = estimate_noise(case.image.unsqueeze(0), compression=[case.compression])
    return {"estimate": found.level, "truth": case.noise, "certain": float(found.certain)}


def _as_given(y: Tensor) -> Tensor:
    return y


def _noise(like: Tensor, seed: int) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))


def photographs(scale: Scale, directory: Path | None) -> list[Tensor]:
    """Return photographs. Only "paper" reads the test part."""
    try:
        pictures: Sequence[Tensor] = data.bsds500(
            "test" if PARTS[scale] == "test" else "val", directory
        )
    except data.DataMissing:
        if scale != "quick":
            raise
        pictures = data.bundled_photographs("train")
    every = max(1, len(pictures) // PLACES)
    return list(pictures)[::every][: COUNTS[scale]]


def middle(picture: Tensor, side: int) -> Tensor:
    """Return the square in the middle of a photograph."""
    row = (picture.shape[-2] - side) // 2
    column = (picture.shape[-1] - side) // 2
    return picture[:, row : row + side, column : column + side].contiguous()


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Restore all photographs, and judge."""
    quality = _records(scale, "quality", PRIORS)
    steps = _records(scale, "steps", [name for each in STEPS.values() for name in versions(each)])
    most = QUICK_CASES if scale == "quick" else None
    results: Measured = {}
    for index, picture in enumerate(photographs(scale, directory)):
        colour = middle(picture, SIDES[scale])
        makers: dict[str, tuple[Callable[[Tensor, int], Iterator[Case]], ...]] = {
            "colour": (denoising_cases, inpainting_cases, deblurring_cases)
        }
        if scale != "quick":
            makers["grey"] = (denoising_cases,)
        for kind, tasks in makers.items():
            clean = colour if kind == "colour" else to_grey(colour)
            for make in tasks:
                for case in islice(make(clean, index), most):
                    for name, restore in case.contestants.items():
                        key = f"{kind}, {case.name} | {name} | {index}"
                        found = quality.measure(key, partial(_timed, restore, case))
                        table = results.setdefault(f"{kind}, {case.name}", {})
                        table.setdefault(name, []).append(found)
            whole_photograph = picture if kind == "colour" else to_grey(picture)
            for name, estimate in islice(noise_estimates(whole_photograph, index), most):
                found = quality.measure(f"{kind}, noise {name} | {index}", estimate)
                results.setdefault(f"{kind}, noise {name}", {}).setdefault("", []).append(found)
        for task, damage, objective in islice(step_problems(colour, index), most):
            for entry in versions(STEPS[task]):
                key = f"steps: {damage} | {entry} | {index}"
                found = steps.measure(key, partial(steps_of_proof, objective, entry))
                name = LEARNED if entry == STEPS[task] else CONTROLLED
                results.setdefault(f"steps: {damage}", {}).setdefault(name, []).append(found)
        say(f"photograph {index + 1} of {COUNTS[scale]}")
    for entry in (
        *PRIORS,
        VARIATION,
        *(name for each in STEPS.values() for name in versions(each)),
    ):
        zoo.load(entry)  # names them in the provenance, also if all records were kept
    result = Result(
        "photographs",
        "Restored photographs beside BM3D, biharmonic filling and total variation",
        {
            "scale": scale,
            "photographs": f"{COUNTS[scale]} of the {PARTS[scale]} part, {SIDES[scale]}² crops",
            "seconds": "of CPU time, all threads; best weights are searched within the time",
        },
    )
    _tabulate(result, results)
    if scale != "quick":
        _judge(result, results)
    return result


def versions(entry: str) -> list[str]:
    """Return an entry and its control, if that is shipped."""
    return [entry, *({entry + CONTROL} & set(zoo.list()))]


def _records(scale: Scale, kind: str, entries: Sequence[str]) -> Records:
    """Return the results that depend on some entries."""
    if scale == "quick":
        return Records(None)
    stamp = cache.key_of(kind, entries=" ".join(zoo.fingerprint(name) for name in entries))[:12]
    return Records(cache.directory() / f"photographs-{PARTS[scale]}-{kind}-{stamp}.json")


def _timed(restore: Callable[[], Tensor], case: Case) -> dict[str, float]:
    """Return the PSNR of a contestant, its CPU time and its wall-clock time."""
    cpu = process_time()
    began = perf_counter()
    x = restore()
    seconds = perf_counter() - began
    return {
        "psnr": round(decibels(x, case), 4),
        "cpu": round(process_time() - cpu, 4),
        "seconds": round(seconds, 4),
    }


Measured = dict[str, dict[str, list[dict[str, float]]]]


def _tabulate(result: Result, results: Measured) -> None:
    """Add tables of mean PSNR and CPU time, and of noise estimates."""
    for task in ("denoise", "inpaint", "deblur"):
        chosen = {case: named for case, named in results.items() if f", {task} " in case}
        names = list(dict.fromkeys(name for named in chosen.values() for name in named))
        for title, entry, digits in (("PSNR in dB", "psnr", 2), ("seconds", "cpu", 3)):
            rows = []
            for case, named in chosen.items():
                cells = [_cell(named, name, entry, digits) for name in names]
                rows.append((case.replace(f"{task} ", ""), *cells))
            result.tables[f"{task}: mean {title}"] = Table(("photographs", *names), rows)
    result.tables["learned steps and their controls to a proven gap of 0.001"] = Table(
        ("problem", "steps", "steps of the control"),
        [
            (
                case.removeprefix("steps: "),
                *(_cell(named, name, "steps", 1) for name in (LEARNED, CONTROLLED)),
            )
            for case, named in results.items()
            if case.startswith("steps: ")
        ],
    )
    sizes = [f"{side}²" for side in ESTIMATED_SIDES] + ["whole"]
    rows = []
    for files in ("plain", "JPEG"):
        for kind in ("colour", "grey"):
            rows += [
                _row_of_estimates(f"{files}, {kind}, {size}", found)
                for size in sizes
                if (found := _estimates(results, files, kind, [size]))
            ]
        counted = _estimates(results, files, "", _counted_sizes())
        if counted:
            rows.append(_row_of_estimates(f"all {files} of {SMALLEST_SIDE}² and more", counted))
    columns = ("files", "cases", "within 15 %", "within 25 %", "cannot tell, σ > 0.02")
    result.tables["noise estimates"] = Table(columns, rows)


def _cell(named: Mapping[str, list[dict[str, float]]], name: str, entry: str, digits: int) -> str:
    """Return the mean of a measurement as text."""
    if name not in named:
        return "not measured"
    return f"{statistics.mean(each[entry] for each in named[name]):.{digits}f}"


def _row_of_estimates(name: str, found: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    within = [f"{_share_within(found, limit):.1%}" for limit in (0.15, 0.25)]
    return (name, str(len(found)), *within, f"{_share_unsure(found):.1%}")


def _share_within(found: Sequence[Mapping[str, float]], limit: float) -> float:
    """Return the share of estimates whose relative error is at most a limit."""
    errors = [abs(each["estimate"] / each["truth"] - 1) for each in found]
    return sum(error <= limit for error in errors) / len(errors)


def _share_unsure(found: Sequence[Mapping[str, float]]) -> float:
    """Return the share of uncertain estimates among files with visible noise."""
    loud = [each for each in found if each["truth"] > 0.02]
    return sum(not each["certain"] for each in loud) / max(1, len(loud))


def _counted_sizes() -> list[str]:
    return [f"{side}²" for side in ESTIMATED_SIDES if side >= SMALLEST_SIDE] + ["whole"]


def _estimates(
    results: Measured, files: str, kind: str, sizes: Sequence[str]
) -> list[dict[str, float]]:
    """Return the noise estimates of plain pictures or JPEG files of some sizes."""
    return [
        each
        for case, named in results.items()
        if case.startswith(kind) and f"noise {files}" in case and case.split()[-2] in sizes
        for each in named[""]
    ]


def _mean(results: Measured, case: str, name: str, entry: str = "psnr") -> float | None:
    named = results[case].get(name)
    return None if named is None else statistics.mean(each[entry] for each in named)


def _judge(result: Result, results: Measured) -> None:
    """Add what must hold, with the measured numbers."""
    for level, least in ((0.02, 1.5), (0.05, 2.0), (0.1, 2.0)):
        case = f"colour, denoise {level:g}"
        _claim(
            result,
            results,
            f"{case}, blind: at least {least:g} dB above TV, blind",
            [(case, OURS_BLIND, TV_BLIND)],
            least,
        )
        _claim(
            result,
            results,
            f"{case}, σ given: at most 0.3 dB below colour BM3D",
            [(case, OURS, BM3D)],
            -0.3,
        )
        grey = f"grey, denoise {level:g}"
        _claim(result, results, f"{grey}, σ given: not below BM3D", [(grey, OURS, BM3D)], 0.0)
    inpainted = [case for case in results if case.startswith("colour, inpaint")]
    _claim(
        result,
        results,
        "colour, inpainting by the default: at least 0.5 dB above biharmonic filling",
        [(case, DEFAULT, BIHARMONIC) for case in inpainted],
        0.5,
    )
    blurred = [case for case in results if case.startswith("colour, deblur")]
    _claim(
        result,
        results,
        "colour, deblurring by the default: at least 1 dB above TV with its best weight",
        [(case, DEFAULT, TV_BEST) for case in blurred],
        1.0,
    )
    worse = []
    for named in results.values():
        if OURS_BLIND not in named:
            continue
        pairs = zip(named[OURS_BLIND], named[INPUT], strict=True)
        worse += [ours["psnr"] - given["psnr"] for ours, given in pairs]
    result.claims.append(
        Claim(
            "on no photograph is blind denoising worse than the input",
            min(worse) >= 0,
            f"smallest gain {min(worse):.2f} dB",
        )
    )
    times = [_mean(results, f"colour, denoise {level:g}", OURS, "cpu") for level in LEVELS]
    slowest = max(time for time in times if time is not None)
    result.claims.append(
        Claim(
            "denoising of a 160² colour crop to a proven gap of 0.001 takes at most 0.2 s of CPU "
            "time, σ given",
            slowest <= 0.2,
            f"{slowest:.3f} s at the slowest level",
        )
    )
    for files, limit, share in (("plain", 0.15, 0.95), ("JPEG", 0.25, 0.8)):
        found = _estimates(results, files, "", _counted_sizes())
        good = _share_within(found, limit)
        result.claims.append(
            Claim(
                f"noise estimates of {files} files of {SMALLEST_SIDE}² and more: within "
                f"{limit:.0%} in {share:.0%} of the cases",
                good >= share,
                f"{good:.1%} of {len(found)}",
            )
        )
        unsure = _share_unsure(found)
        result.claims.append(
            Claim(
                f"noise estimates of {files} files of {SMALLEST_SIDE}² and more: uncertain in at "
                "most 5% of the cases with σ > 0.02",
                unsure <= 0.05,
                f"{unsure:.1%}",
            )
        )


def _claim(
    result: Result,
    results: Measured,
    statement: str,
    pairs: Sequence[tuple[str, str, str]],
    least: float,
) -> None:
    """Add a claim on the mean difference of PSNR between two contestants over some cases."""
    differences = []
    for case, ours, theirs in pairs:
        named = results[case]
        if theirs not in named:
            result.claims.append(Claim(statement, None, f"{theirs} was not installed"))
            return
        for a, b in zip(named[ours], named[theirs], strict=True):
            differences.append(a["psnr"] - b["psnr"])
    mean = statistics.mean(differences)
    result.claims.append(Claim(statement, mean >= least, f"{mean:+.2f} dB"))
