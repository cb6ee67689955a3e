"""``mirrordescent compare``: is a learned method any good?"""

from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from mirrordescent.cli.output import AsJSON


def compare(
    entry: Positional[str],
    problem: Literal["inpaint", "denoise"] = "inpaint",
    images: str = "bundled",
    count: int = 8,
    size: int = 96,
    weight: float = 0.15,
    noise: float = 0.05,
    missing: float = 0.2,
    iterations: int = 500,
    out: Path = Path("out/compare"),
    json: AsJSON = False,
) -> None:
    """Say whether a learned method is any good, on pictures of your own.

    It runs against PDHG with tuned steps, the entries of the zoo, and itself without its map:
    iterations and time to relative gaps of 1e-2 and 1e-3, a verdict in words, and a page,
    OUT/NAME.html.

    For example: mirrordescent compare out/zoo/my-map.safetensors --problem inpaint --images
    holidays/

    Args:
        entry: a method: an entry of the zoo, or a .safetensors file.
        problem: what it is to be good at.
        images: bundled, a folder or an archive of pictures; a part of them is for tuning the
            others.
        count: how many squares are cut out of them.
        size: their side, in pixels.
        weight: λ of the total variation.
        noise: that is added.
        missing: share of the pixels to remove, for inpainting.
        iterations: budget of every method.
        out: folder to write the page to.
    """
    from mirrordescent.cli.output import aligned, show
    from mirrordescent.restore.compare import compare as run

    found = run(
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
    table = found.table()
    page = found.page().write(out / f"{Path(entry).stem}.html")
    lines = [*aligned([table.columns, *table.rows]), "", found.words, f"page: {page}"]
    results = [{k: v for k, v in vars(each).items() if k != "curve"} for each in found.contestants]
    show({"verdict": found.words, "contestants": results, "page": page}, lines, json)
