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

from mirrordescent.report.content import GAP as GAP
from mirrordescent.report.content import Claim as Claim
from mirrordescent.report.content import Comparison as Comparison
from mirrordescent.report.content import Curve as Curve
from mirrordescent.report.content import Dots as Dots
from mirrordescent.report.content import Link as Link
from mirrordescent.report.content import Panel as Panel
from mirrordescent.report.content import Picture as Picture
from mirrordescent.report.content import Section as Section
from mirrordescent.report.content import Strip as Strip
from mirrordescent.report.content import Table as Table
from mirrordescent.report.page import Page as Page

__all__: list[str] = []
