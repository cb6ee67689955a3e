"""``mirrordescent learn``: an entry of the zoo anew, or a map of one's own from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional, UseAppendAction

from mirrordescent.cli.lab import lab


def learn(
    what: Annotated[Positional[str], tyro.conf.arg(metavar="CONFIG|NAME")],
    runs: Path = Path("runs"),
    out: Path = Path("out/zoo"),
    data: Path | None = None,
    resume: bool = True,
    device: str = "cpu",
    set: UseAppendAction[tuple[str, ...]] = (),
    json: bool = False,
) -> None:
    """Learn a method: your own, as a small TOML file describes it, or an entry of the zoo by its name.

    Runs are kept in RUNS/NAME and go on where they stopped. What was learned is written to OUT/NAME.safetensors, which
    is used with --mirror OUT/NAME.safetensors, or mirrordescent.zoo.load.

    For example:

        mirrordescent learn photo-inpaint-conjugate
        mirrordescent learn my.toml --set settings.meta_steps=200 --set map.filters=8

    where my.toml says

        name = "my-map"

        [family]                    # or type = "my_module:MyFamily", with its arguments below
        type = "inpainting"         # inpainting, denoising, svm, moons
        source = "holidays/"        # bundled, bsds500, stl10, a folder or an archive
        size = 32

        [map]                       # or type = "my_module:MyMap"
        type = "conjugate"          # conjugate, pair, diagonal
        filters = 16

        [method]
        name = "lsmd"
        step = 0.3

        [settings]
        meta_steps = 1000

    Args:
        what: a .toml file, or the name of an entry such as photo-inpaint-conjugate.
        runs: the folder for checkpoints and logs.
        out: the folder to write the entry to.
        data: the data directory; MIRRORDESCENT_DATA by default.
        resume: go on where a run stopped, or start anew.
        device: to learn on, such as cuda.
        set: key=value, to change a setting; once for each.
        json: print the outcome as JSON.
    """
    from mirrordescent.cli.output import progress, show
    from mirrordescent.learn import read_config
    from mirrordescent.zoo.own import learn_own

    if what.endswith(".toml"):
        config = read_config(what, set)
        path, found = learn_own(config, runs, out, data, resume=resume, device=device, progress=progress())
        report = {
            "entry": path,
            "best validation": found.best_validation,
            "at meta-step": found.best_step,
            "seconds": found.seconds,
        }
    else:
        train = lab("recipes").train
        path = train(what, runs, data, out, changes=set, resume=resume, device=device, progress=progress())
        report = {"entry": path}
    show(report, [f"{key}: {value}" for key, value in report.items()], json)
