"""Restored photographs beside what else can be installed: BM3D, biharmonic filling, and TV.

One photograph is measured at a time, and every result is written to a file at once, so that an
interrupted run continues. The quick and the standard scale use validation photographs. Only the
scale "paper" reads the test part, which is to be looked at once.
"""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent import data, zoo
from mirrordescent._internal import cache
from mirrordescent._internal.files import whole
from mirrordescent.data.random_masks import blocks, scratches, writing
from mirrordescent.problems import gaussian_kernel, motion_kernel
from mirrordescent.restore.compression import compression_of
from mirrordescent.restore.deciding import DEBLURRING
from mirrordescent.restore.noise import estimate_noise
from mirrordescent.restore.weight import POWER, RULE
from mirrordescent_experiments.result import Claim, Result, Table
from mirrordescent_experiments.scales import Say, Scale

COUNTS: dict[Scale, int] = {"quick": 1, "standard": 20, "paper": 20}
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
QUALITIES = (60, 75, 95)
"""Qualities of JPEG files whose noise is estimated."""
GREY = (0.299, 0.587, 0.114)
"""Weights of the channels of a grey photograph."""
ENTRIES = ("photo-prior", "photo-prior-grey", "photo-prior-denoise")
"""Entries on which the results depend."""
INPUT = "input"
OURS = "prior, σ given"
OURS_BLIND = "prior, blind"
TV = "TV, σ given"
TV_BLIND = "TV, blind"
BM3D = "BM3D, σ given"
TV_BEST = "TV, best weight"
PRIOR = "prior"
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
        generator = torch.Generator().manual_seed(1000 * number + seed)
        known = shape(generator).bool()
        known[0, 0] = True
        known[side // 2, side // 2] = False  # a mask without holes has no error that counts
        mask = known.unsqueeze(0)
        y = clean * mask
        contestants = {
            INPUT: partial(_as_given, y),
            PRIOR: partial(md.inpaint, y, mask, prior="photo"),
            DEFAULT: partial(md.inpaint, y, mask),
            "TV": partial(md.inpaint, y, mask, prior="tv"),
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
        rows, columns = kernel.shape
        border = max(rows, columns) // 2
        bank = kernel.flip(0, 1).reshape(1, 1, rows, columns)
        sides = (columns // 2, columns // 2, rows // 2, rows // 2)
        padded = F.pad(clean.unsqueeze(1), sides, mode="reflect")
        y = F.conv2d(padded, bank).squeeze(1) + BLURRED_NOISE * _noise(clean, seed)
        counted = torch.zeros_like(clean[:1])
        counted[:, border:-border, border:-border] = 1
        restored = partial(md.deblur, y, kernel, noise=BLURRED_NOISE)
        contestants = {
            INPUT: partial(_as_given, y),
            PRIOR: partial(restored, prior="photo"),
            DEFAULT: restored,
            TV_BEST: partial(best_variation, y, kernel, Case(name, clean, counted, {})),
        }
        yield Case(f"deblur {name}", clean, counted, contestants)


def best_variation(y: Tensor, kernel: Tensor, case: Case) -> Tensor:
    """Return the result of total variation with the weight that is best for this photograph."""
    weight = DEBLURRING * RULE * BLURRED_NOISE**POWER
    tried = [md.deblur(y, kernel, weight=factor * weight, prior="tv") for factor in WEIGHT_FACTORS]
    return max(tried, key=partial(decibels, case=case))


def noise_estimates(
    clean: Tensor, seed: int
) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """Yield measurements of noise estimates: the estimate, the truth, and whether it is certain.

    The truth is the root mean square difference to the clean picture, compressed alike.
    """
    for level in LEVELS:
        for side in sorted({min(64, clean.shape[-1]), clean.shape[-1]}):
            crop = clean[:, :side, :side].contiguous()
            noisy = crop + level * _noise(crop, seed)
            yield f"plain {side}² {level:g}", partial(_estimated, noisy, level, None)
        noisy = clean + level * _noise(clean, seed)
        for quality in QUALITIES:
            for subsampling in (2, 0) if len(clean) == 3 else (0,):
                colours = "4:2:0" if subsampling else "4:4:4"
                estimate = partial(_compressed, noisy, clean, quality, subsampling)
                yield f"JPEG {quality} {colours} {level:g}", estimate


def _estimated(noisy: Tensor, truth: float, compression: Any) -> dict[str, float]:
    (found,) = estimate_noise(noisy.unsqueeze(0), compression=[compression])
    return {"estimate": found.level, "truth": truth, "certain": float(found.certain)}


def _compressed(noisy: Tensor, clean: Tensor, quality: int, subsampling: int) -> dict[str, float]:
    """Return the estimate of the noise of a JPEG file."""
    from PIL import Image

    def stored(picture: Tensor) -> tuple[Tensor, Any]:
        pixels = (255 * picture.clamp(0, 1)).round().byte().permute(1, 2, 0).numpy()
        image = Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)
        file = io.BytesIO()
        options = {"subsampling": subsampling} if len(picture) == 3 else {}
        image.save(file, "JPEG", quality=quality, **options)
        read = Image.open(io.BytesIO(file.getvalue()))
        compression = compression_of(read)
        values = torch.from_numpy(np.array(read)).float() / 255
        values = values.unsqueeze(-1) if values.ndim == 2 else values
        return values.permute(2, 0, 1).contiguous(), compression

    with_noise, compression = stored(noisy)
    without, _ = stored(clean)
    truth = float((with_noise - without).square().mean().sqrt())
    return _estimated(with_noise, truth, compression)


def _as_given(y: Tensor) -> Tensor:
    return y


def _noise(like: Tensor, seed: int) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))


def photographs(scale: Scale, directory: Path | None) -> list[Tensor]:
    """Return square crops from the centre of photographs. Only "paper" reads the test part."""
    try:
        pictures: Sequence[Tensor] = data.bsds500(
            "test" if PARTS[scale] == "test" else "val", directory
        )
    except data.DataMissing:
        if scale != "quick":
            raise
        pictures = data.bundled_photographs("train")
    side = SIDES[scale]
    every = max(1, len(pictures) // COUNTS[scale])
    crops = []
    for picture in list(pictures)[::every][: COUNTS[scale]]:
        row = (picture.shape[-2] - side) // 2
        column = (picture.shape[-1] - side) // 2
        crops.append(picture[:, row : row + side, column : column + side].contiguous())
    return crops


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Restore all photographs, and judge."""
    path = None
    if scale != "quick":
        stamp = "-".join(zoo.fingerprint(name) for name in ENTRIES)
        path = cache.directory() / f"photographs-{PARTS[scale]}-{stamp}.json"
    records = Records(path)
    most = QUICK_CASES if scale == "quick" else None
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for index, colour in enumerate(photographs(scale, directory)):
        weights = torch.tensor(GREY).reshape(3, 1, 1)
        kinds = {"colour": colour, "grey": (weights * colour).sum(0, keepdim=True)}
        if scale == "quick":
            del kinds["grey"]
        for kind, clean in kinds.items():
            for make in (denoising_cases, inpainting_cases, deblurring_cases):
                for case in islice(make(clean, index), most):
                    for name, restore in case.contestants.items():
                        key = f"{kind}, {case.name} | {name} | {index}"
                        found = records.measure(key, partial(_timed, restore, case))
                        table = results.setdefault(f"{kind}, {case.name}", {})
                        table.setdefault(name, []).append(found)
            for name, estimate in islice(noise_estimates(clean, index), most):
                found = records.measure(f"{kind}, noise {name} | {index}", estimate)
                results.setdefault(f"{kind}, noise {name}", {}).setdefault("", []).append(found)
        say(f"photograph {index + 1} of {COUNTS[scale]}")
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
                cells = [
                    f"{statistics.mean(each[entry] for each in named[name]):.{digits}f}"
                    if name in named
                    else "not measured"
                    for name in names
                ]
                rows.append((case.replace(f"{task} ", ""), *cells))
            result.tables[f"{task}: mean {title}"] = Table(("photographs", *names), rows)
    rows = []
    for kind in ("plain", "JPEG"):
        found = _estimates(results, kind)
        if not found:
            continue
        errors = [abs(each["estimate"] / each["truth"] - 1) for each in found]
        within = [sum(error <= limit for error in errors) / len(errors) for limit in (0.15, 0.25)]
        loud = [each for each in found if each["truth"] > 0.02]
        unsure = sum(not each["certain"] for each in loud) / max(1, len(loud))
        rows.append((kind, str(len(found)), *(f"{share:.1%}" for share in (*within, unsure))))
    columns = ("files", "cases", "within 15 %", "within 25 %", "cannot tell, σ > 0.02")
    result.tables["noise estimates"] = Table(columns, rows)


def _estimates(results: Measured, kind: str) -> list[dict[str, float]]:
    """Return the noise estimates of plain pictures or JPEG files."""
    return [
        each for case, named in results.items() if f"noise {kind}" in case for each in named[""]
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
    for case, named in results.items():
        if "denoise" not in case:
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
    for kind, limit, share in (("plain", 0.15, 0.95), ("JPEG", 0.25, 0.8)):
        found = _estimates(results, kind)
        good = sum(abs(each["estimate"] / each["truth"] - 1) <= limit for each in found)
        result.claims.append(
            Claim(
                f"noise estimates of {kind} files within {limit:.0%} in {share:.0%} of the cases",
                good / len(found) >= share,
                f"{good / len(found):.1%} of {len(found)}",
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
