"""``mirrordescent solve``: photographs restored by total variation."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional
from tyro.extras import SubcommandApp

from mirrordescent.checks import require_positive
from mirrordescent.cli.output import AsJSON, progress, say, show, visible
from mirrordescent.restore import plan
from mirrordescent.restore.jobs import Jobs
from mirrordescent.restore.page import page
from mirrordescent.restore.planning import Task

app = SubcommandApp()


@dataclass(frozen=True)
class Solving:
    """What denoising and inpainting have in common.

    Args:
        images: photographs, or folders of them, in any format that Pillow reads.
        weight: λ of the total variation. Larger is smoother: 0.15 suits noise of about 0.05, and 0.03 photographs
            without noise.
        isotropic: measure the variation of a pixel in both directions together, so that edges of all directions count
            alike. This is what is usually meant by total variation; the default is the sum of both.
        coupled: measure it of all colours together, so that edges of different colours meet.
        method: lmd, lsmd, lamd, lasmd, md, smd, amd, asmd, gd, nesterov, adam, pdhg or dual-fista; by
            default a learned method begins, image-tv, and a primal-dual one finishes.
        mirror: an entry of the zoo, or a .safetensors file, for the methods with a mirror map.
        iterations: budget of the method.
        tolerance: relative gap to the optimum to reach and to prove, if need be with a primal-dual method at the end.
        fused: compile kernels in C, which make steps several times faster on a CPU. This takes a C compiler and some
            seconds, once: kernels that are compiled are used without being asked for.
        truth: the undamaged photograph, or a folder of them with the same names, for PSNR and SSIM.
        out: folder to write to, with a page index.html. Inputs are never overwritten.
    """

    images: Positional[tuple[Path, ...]]
    weight: float = 0.15
    isotropic: bool = False
    coupled: bool = False
    method: str | None = None
    mirror: str | None = None
    iterations: int | None = None
    tolerance: float | None = None
    fused: bool = False
    truth: Path | None = None
    out: Path = Path("out/solve")
    json: AsJSON = False


@dataclass(frozen=True)
class Damage:
    """What inpainting has in addition: which pixels are missing.

    Args:
        mask: an image of the same size, or a folder of them with the same names: white where pixels are known, black
            where they are missing. Without one, pixels that are fully transparent are missing.
        missing: share of the pixels to remove at random, for a trial.
        seed: decides which pixels are removed.
    """

    mask: Path | None = None
    missing: float | None = None
    seed: int = 0


@app.command
def denoise(options: Annotated[Solving, tyro.conf.arg(name="")]) -> int:
    """Remove noise from photographs by total variation.

    For example:

        mirrordescent solve denoise noisy.jpg
        mirrordescent solve denoise holidays/ --weight 0.1 --out restored --fused
        mirrordescent solve denoise noisy.png --truth clean.png --method lamd --iterations 40 --json
    """
    return _run("denoise", options)


@app.command
def inpaint(
    options: Annotated[Solving, tyro.conf.arg(name="")], damage: Annotated[Damage, tyro.conf.arg(name="")]
) -> int:
    """Fill in missing pixels of photographs, and remove their noise, by total variation.

    For example:

        mirrordescent solve inpaint scratched.jpg --mask mask.png
        mirrordescent solve inpaint cutout.png                 (transparent pixels are missing)
        mirrordescent solve inpaint photo.jpg --missing 0.3    (a trial: removes pixels first)
        mirrordescent solve inpaint scans/ --mask masks/ --mirror photo-inpaint-conjugate --tolerance 1e-4
    """
    return _run("inpaint", options, **vars(damage))


def _run(task: Task, options: Solving, **damage: Any) -> int:
    require_positive(weight=options.weight)
    how = plan(task, options.method, options.mirror, options.iterations, options.tolerance, options.fused or None)
    damage |= {"isotropic": options.isotropic, "coupled": options.coupled}
    jobs = Jobs(task, options.images, options.out, options.weight, truth=options.truth, **damage)
    options.out.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=options.out).close()  # it has to be possible to keep what is found
    outcomes = []
    for outcome in jobs.run(how, progress()):
        outcomes.append(outcome)
        if not options.json:
            print(visible(outcome.line()), flush=True)
    where = page(task, outcomes, how, options.weight).write(options.out / "index.html")
    report = {"task": task, "page": where, "images": [outcome.record for outcome in outcomes]}
    show(report, [f"page: {where}"], options.json)
    unreached = [o for o in outcomes if o.status.failed or (how.promised and not o.gap <= how.tolerance)]
    for outcome in unreached:
        say(f"mirrordescent: {outcome.name} ended as {outcome.status} with a relative gap of {outcome.gap:.1e}")
    return 1 if unreached else 0
