"""Pages to test with."""

from __future__ import annotations

import torch

from mirrordescent.report import (
    Claim,
    Comparison,
    Curve,
    Dots,
    Link,
    Page,
    Panel,
    Picture,
    Section,
    Strip,
    Table,
)

HOSTILE = (
    "</script><script>window.hacked = true</script>"
    "<img src=x onerror='window.hacked = true'> & \"quotes\""
)
WIDE = (Link("a b.png", "javascript:alert(1)/a b.png"), "31.20", "0.912", "1.0e-03", "0.8")
NAMES = ("GD", "LAMD", HOSTILE)


def curves(points=400, runs=3):
    generator = torch.Generator().manual_seed(0)
    iterations = list(range(points))
    spread = 1 + torch.rand(1, runs, generator=generator)
    return [
        Curve(
            name,
            iterations,
            [0.01 * (1 + i) * k for k in iterations],
            spread / (1 + torch.tensor(iterations, dtype=torch.float64))[:, None] ** (1 + i / 2),
        )
        for i, name in enumerate(NAMES)
    ]


def pictures(height=24, width=32):
    generator = torch.Generator().manual_seed(1)
    ramp = torch.linspace(0, 1, width).expand(3, height, width)
    return {
        "damaged": Picture(torch.rand(3, height, width, generator=generator), "11.2 dB"),
        "restored": Picture(ramp, "29.4 dB"),
        "original": Picture(ramp[0]),
    }


def page():
    return Page(
        f"A title {HOSTILE}",
        f"A lead {HOSTILE}",
        [
            Section(
                "Pictures",
                Comparison({"cat": pictures(), HOSTILE: pictures()}, "damaged", "restored"),
                HOSTILE,
            ),
            Section(
                "Claims",
                [Claim("one is less than two", True, "1, 2"), Claim(HOSTILE, False, HOSTILE)],
            ),
            Section("Convergence", Panel(curves())),
            Section("Accuracy", Panel(curves()[:2], "share", "seconds", ("linear", "linear"))),
            Section(
                "Multipliers",
                Dots({"a": torch.arange(5.0), "b": torch.arange(5.0, 12.0)}, "multiplier"),
            ),
            Section("Weights", Strip(pictures(), "restored"), "A slider."),
            Section("Files", Table(("file", "PSNR", "SSIM", "gap", "seconds"), [WIDE])),
            Section(
                "Table",
                Table(
                    ("method", "gap", HOSTILE), [("GD", "0.1", "ok"), (HOSTILE, "12.5", "failed")]
                ),
            ),
        ],
        {"weight": 0.15, "note": HOSTILE},
    )
