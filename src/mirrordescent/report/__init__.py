"""Reports: one HTML file with pictures to compare, curves, tables and claims.

This package is internal to the pages that commands write. It has no public names.

>>> import torch
>>> from mirrordescent.report import Comparison, Page, Picture, Section
>>> damaged = Picture(torch.rand(3, 8, 8), "9.1 dB")
>>> restored = Picture(torch.rand(3, 8, 8), "27.0 dB")
>>> comparison = Comparison({"cat": {"damaged": damaged, "restored": restored}})
>>> page = Page("A restored photograph", sections=[Section("Before and after", comparison)])
>>> "27.0 dB" in page.html()
True
"""

from mirrordescent.report.content import (
    GAP as GAP,
    Claim as Claim,
    Comparison as Comparison,
    Curve as Curve,
    Dots as Dots,
    Link as Link,
    Panel as Panel,
    Picture as Picture,
    Section as Section,
    Strip as Strip,
    Table as Table,
)
from mirrordescent.report.page import Page as Page

__all__: list[str] = []
