"""``mirrordescent demo``: restore photographs and train a network."""

from pathlib import Path

from mirrordescent.cli.output import Folder, join_argument_lines


@join_argument_lines
def demo(
    out: Folder = Path("out/demo"),
    size: int = 128,
    iterations: int = 200,
    missing: float = 0.2,
    noise: float = 0.05,
    fill: bool = False,
    seed: int = 0,
) -> None:
    """Restore damaged photographs and train a small network with learned and classical methods.

    First, pixels are removed from two photographs of scikit-image and noise is added. Every method
    restores them by total-variation inpainting, and is measured against the certified optimum.
    Step sizes of classical methods are tuned on other photographs. Then a small network is trained
    on digits, against Adam. Tables are printed, and a page is written to OUT. The
    demonstration takes less than a minute and downloads nothing.

    For example:

        mirrordescent demo
        mirrordescent demo --missing 0.6 --size 256
        mirrordescent demo --fill

    Args:
        out: Folder to write to.
        size: Side of the photographs in pixels.
        iterations: Number of iterations of every method.
        missing: Share of the pixels to remove.
        noise: Standard deviation of the noise on the other pixels.
        fill: Start from an image whose holes are filled from their neighbours, not with black.
        seed: Seed of the mask and the noise.
    """
    from mirrordescent.demo import Damage, run

    run(out, Damage(size, missing, noise, fill, seed), iterations)
