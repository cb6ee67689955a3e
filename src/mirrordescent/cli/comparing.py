"""``mirrordescent compare``: measure a learned method against other methods."""

from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

from mirrordescent.cli.output import AsJSON, Entry, Folder, join_argument_lines


@join_argument_lines
def compare(
    entry: Positional[Entry],
    problem: Literal["inpaint", "denoise"] = "inpaint",
    images: Annotated[str, tyro.conf.arg(metavar="FOLDER|bundled")] = "bundled",
    count: int = 8,
    size: int = 96,
    weight: float = 0.15,
    noise: float = 0.05,
    missing: float = 0.2,
    iterations: int = 500,
    out: Folder = Path("out/compare"),
    json: AsJSON = False,
) -> None:
    """Compare a learned method with other methods on your own photographs.

    The method runs against PDHG with tuned step sizes, against the methods of the zoo, and against
    itself without its mirror map. The command prints the iterations and the time that each needs to
    reach relative gaps of 1e-2 and 1e-3, states a verdict, and writes a page to OUT/NAME.html.

    For example: mirrordescent compare out/zoo/my-map.safetensors --images holidays/

    Args:
        entry: Name of a zoo entry, or a .safetensors file.
        problem: Kind of problem to solve.
        images: Folder or archive of photographs, or the word bundled for those that come with the
            library. The other methods are tuned on some of them.
        count: Number of squares to cut out of the photographs.
        size: Side of a square, in pixels.
        weight: Weight λ of the total variation.
        noise: Standard deviation of the noise to add.
        missing: Share of the pixels to remove, for inpainting.
        iterations: Number of iterations of every method.
        out: Folder for the page.
    """
    from mirrordescent.cli.output import aligned, show
    from mirrordescent.restore.compare import compare as run

    verdict = run(
        entry,
        problem,
        images,
        count=count,
        size=size,
        weight=weight,
        noise=noise,
        missing=missing,
        iterations=iterations,
    )
    table = verdict.table()
    page = verdict.page().write(out / f"{Path(entry).stem}.html")
    contestants = []
    for contestant in verdict.contestants:
        record = dict(vars(contestant))
        del record["curve"]
        contestants.append(record)
    report = {"verdict": verdict.words, "contestants": contestants, "page": page}
    lines = [*aligned([table.columns, *table.rows]), "", verdict.words, f"page: {page}"]
    show(report, lines, json)
