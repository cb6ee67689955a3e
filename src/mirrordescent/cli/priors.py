"""``mirrordescent learn-prior``: learn a prior from a folder of pictures."""

from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from mirrordescent.cli.output import (
    AsJSON,
    DataDirectory,
    OptionalText,
    join_argument_lines,
)


@join_argument_lines
def learn_prior(
    pictures: Annotated[Positional[str], tyro.conf.arg(metavar="FOLDER")],
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"], metavar="FILE")] = Path("out/zoo/my-prior"),
    runs: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs"),
    minutes: float = 60.0,
    grey: bool = False,
    modulus: float = 0.9,
    start: OptionalText = None,
    convex_share: float = 0.25,
    resume: bool = True,
    data: DataDirectory = None,
    json: AsJSON = False,
) -> int:
    """Learn a prior for the restoration of pictures from a folder of clean ones.

    The prior is a sum of functions of the responses of learned filters. It is learned such that
    denoised pictures are close to the clean ones, for all noise levels up to 0.2. Its denoising
    energy is strongly convex by construction, so that every solution comes with a proof.

    A fifth of the pictures is kept for validation. For bsds500 this is its validation part. An
    interrupted run continues when the command is repeated. RUNS/NAME/log.jsonl lists the validation
    PSNR of the noisy pictures, of total variation and of the prior.

    For example:

        mirrordescent learn-prior holidays/ --minutes 60 --out holidays-prior
        mirrordescent learn-prior holidays/ --minutes 20 --start photo-prior
        mirrordescent learn-prior bsds500 --grey

    Args:
        pictures: Folder or archive of pictures, or bsds500. Pictures should be sharp and have
            little noise.
        out: File of the result, without its suffix.
        runs: Folder for checkpoints and the log.
        minutes: Duration.
        grey: Whether to learn a prior for grey pictures.
        modulus: Modulus of weak convexity, at least 0 and less than 1. With 0 the prior is convex.
            A larger one denoises better, and takes more iterations.
        start: Prior to start from: an entry such as photo-prior, or a file. Learning then needs
            less time.
        convex_share: Share of the duration for the convex profiles, which fill holes and undo blur.
            The rest is for the weakly convex ones, which denoise.
        resume: Whether to continue an interrupted run. Otherwise a new run starts.
    """
    from mirrordescent.cli.output import progress, show
    from mirrordescent.recipes.ridge_priors import (
        LATER_RATES,
        LearningRates,
        PriorSettings,
        learn_from,
    )
    from mirrordescent.restore.deciding import load_prior

    channels = 1 if grey else 3
    settings = PriorSettings(
        channels=channels,
        minutes=minutes,
        modulus=modulus,
        convex_share=convex_share,
        rates=LearningRates() if start is None else LATER_RATES,
    )
    path, results = learn_from(
        pictures,
        out,
        runs / out.name,
        settings,
        resume=resume,
        start=None if start is None else load_prior(start, channels),
        directory=data,
        progress=progress(),
    )
    lines = [f"entry: {path}"]
    for sigma, row in results.items():
        lines.append(
            f"noise {sigma}: {row['noisy']} dB noisy, {row['tv']} dB total variation, "
            f"{row['prior']} dB prior"
        )
    show({"entry": path, "psnr": results}, lines, json)
    return 0
