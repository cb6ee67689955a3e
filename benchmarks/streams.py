"""Measure the gain of warm starts on problems that change slowly (examples/video.py)."""

from benchmarks.measure import quick, table
from mirrordescent import PDHG, DualFISTA

WORDS = """\
A window of 128×128 pixels moves over a noisy photograph, one pixel a frame. Every frame is
denoised by isotropic total variation to a proven gap of 1e-3 of the gap of a cold start: from
scratch, and from the state of the previous frame (`md.solve(..., state=solution.state)`), its dual
variable included. If the noise belongs to the scene, moving the state with the window pays off. If
every frame has its own noise, the solution of one frame is of less use to the next. Iterations are
means over frames; both kinds of runs were taken in turn.

"""


def main() -> str:
    """Measure all ways, for two methods."""
    from examples.video import WAYS, stream  # which reads a photograph

    frames = 4 if quick() else 60
    rows = []
    for name, method in {"PDHG": PDHG(0.5, 1.8), "dual FISTA": DualFISTA()}.items():
        for way, (moves, noise) in WAYS.items():
            cold, warm, faster = stream(method, moves, noise, frames)
            rows.append((name, way, f"{cold:.0f}", f"{warm:.0f}", f"{faster:.1f}"))
    return WORDS + table(("method", "warm start", "iterations, cold", "warm", "times faster"), rows)
