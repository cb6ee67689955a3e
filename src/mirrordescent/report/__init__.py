"""Reports: one HTML file with pictures to compare, curves to zoom into, tables and claims.

>>> import torch
>>> from mirrordescent.report import Comparison, Page, Picture, Section
>>> pictures = {"damaged": Picture(torch.rand(3, 8, 8), "9.1 dB"), "restored": Picture(torch.rand(3, 8, 8), "27.0 dB")}
>>> page = Page("A photograph, restored", sections=[Section("Before and after", Comparison({"cat": pictures}))])
>>> "27.0 dB" in page.html()
True
"""

from mirrordescent.report.content import (
    GAP,
    Claim,
    Comparison,
    Curve,
    Dots,
    Link,
    Panel,
    Picture,
    Section,
    Strip,
    Table,
)
from mirrordescent.report.page import Page

__all__ = [
    "GAP",
    "Claim",
    "Comparison",
    "Curve",
    "Dots",
    "Link",
    "Page",
    "Panel",
    "Picture",
    "Section",
    "Strip",
    "Table",
]
