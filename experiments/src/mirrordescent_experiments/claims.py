"""The paper's claims on the imaging experiments, as checks on measured curves.

A claim is judged by its margin: log₁₀ of a ratio of gaps, problem by problem, with Student's
interval over them. It holds, or does not, if the whole interval says so; else it is not decided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mirrordescent_experiments.extensions import NO_MAP
from mirrordescent_experiments.intervals import paired
from mirrordescent_experiments.result import WIDTH, Claim, Curve, Panel, Result

CONSTANT = ("mean", "min", "last")
TOLERANCE = 0.25  # how far above a claimed exponent a fitted slope may lie
EARNING = (
    "dual-pair LSMD",
    "one-network LSMD",
    "stencil LAMD",
)  # maps that are to be worth a factor of 1.5
LIMIT = 10.0
"""Factor of the width of the reference below which a gap is limited by it."""
PAPER_RULES = {"LAMD": ("reciprocal",), "LSMD": ("reciprocal",), "LASMD": CONSTANT}


def imaging_claims(result: Result) -> list[Claim]:
    """Check every claim, on the extensions and on each comparison."""
    claims = _claims_on_extensions(result)
    width = result.settings.get(WIDTH, 0.0)
    for name, panel in result.panels.items():
        if name.startswith("comparison "):
            claims += _Comparison(name.removeprefix("comparison "), panel, width).claims()
        if name.startswith("controls "):
            claims += control_claims(name.removeprefix("controls "), panel, width)
    if "one network for long" in result.panels:
        claims += [_bounded(curve) for curve in result.panels["one network for long"].curves]
    return claims


def limited(width: float, *gaps: float) -> str:
    """Return a remark if the smallest of some gaps is near the accuracy of the reference.

    Args:
        width: Mean width of the intervals that are proven to contain the minima.
        gaps: Mean gaps.
    """
    if min(gaps, default=math.inf) >= LIMIT * width:
        return ""
    return f"; limited by the reference, whose interval is {width:.2g} wide"


def control_claims(start: str, panel: Panel, width: float = 0.0) -> list[Claim]:
    """Judge every map by its gaps against those of its control: early, and at the end of the run.

    Over the first steps a map is to be worth a factor, at the end anything.
    """
    found = []
    names = panel.names
    for name in (each for each in names if f"{each}{NO_MAP}" in names):
        for k in sorted({10, 100, panel.curves[0].iterations[-1]}):
            factor = 1.5 if name in EARNING and k <= 100 else 1.0
            ours, theirs = (panel[each] for each in (name, f"{name}{NO_MAP}"))
            measured = f"{ours.mean_at(k):.3g} against {theirs.mean_at(k):.3g}"
            times = "below" if factor == 1 else f"at least {factor:g} times below"
            statement = (
                f"{start}: at k = {k}, {name} is {times} its control, the same method without a map"
            )
            gaps = _at(ours, k), [_at(theirs, k)]
            found.append(by_margin(statement, *gaps, measured, factor, width))
    return found


def _claims_on_extensions(result: Result) -> list[Claim]:
    claims = []
    for method, rules in PAPER_RULES.items():
        panel = result.panels[f"{method} extensions"]
        last = panel.curves[0].iterations[-1]
        best = min(
            (c for c in panel.curves if c.name in rules),
            key=lambda curve: _number(curve.mean_at(last)),
        )
        others = [_at(curve, last) for curve in panel.curves if curve.name not in rules]
        measured = ", ".join(f"{curve.name} {curve.mean_at(last):.3g}" for curve in panel.curves)
        expected = "a constant step" if rules == CONSTANT else "the reciprocal rule"
        claims.append(
            by_margin(
                f"{expected} is best for {method} at k = {last}", _at(best, last), others, measured
            )
        )
    claims += [
        _does_not_converge(result.panels[f"{method} extensions"], method)
        for method in ("LAMD", "LSMD")
    ]
    primal, dual = (result.panels[f"{method} extensions"] for method in ("LMD", "LSMD"))
    return [*claims, *(storage(primal, dual, rule) for rule in ("reciprocal", "root_reciprocal"))]


def _does_not_converge(panel: Panel, method: str) -> Claim:
    """Judge that the mean learned step size, as a constant, does not converge."""
    curve = panel["mean"]
    last = curve.iterations[-1]
    half = max(k for k in curve.iterations if k <= last // 2)
    late = _at(curve, last)
    before = _at(curve, half)
    fall = paired(ratio(before, late))
    target = math.log10(1.1)  # a gap that falls by less than a tenth while the run doubles
    measured = (
        f"at {half} {curve.mean_at(half):.3g}, at {last} {curve.mean_at(last):.3g}; decades of "
        f"fall {fall}"
    )
    statement = f'the constant step "mean" does not converge in {method}'
    return Claim.by(statement, target - fall.high, target - fall.low, measured)


def storage(primal: Panel, dual: Panel, rule: str) -> Claim:
    """Judge that primal storage becomes unstable and dual storage does not, with the same rule."""
    curves = {"LMD": primal[rule], "LSMD": dual[rule]}
    last = curves["LMD"].iterations[-1]
    rises = {
        name: paired(ratio(_at(curve, last), _at(curve, 50))) for name, curve in curves.items()
    }
    measured = ", ".join(
        (
            f"{name} at 50 {curve.mean_at(50):.3g}, at {last} {curve.mean_at(last):.3g}, "
            f"decades of rise {rises[name]}"
        )
        for name, curve in curves.items()
    )
    low = min(rises["LMD"].low, -rises["LSMD"].high)
    high = min(rises["LMD"].high, -rises["LSMD"].low)
    return Claim.by(
        f"with the rule {rule} for both, LMD rises after k = 50 and LSMD falls", low, high, measured
    )


def by_margin(
    statement: str,
    ours: Tensor,
    rivals: Sequence[Tensor],
    measured: str,
    factor: float = 1.0,
    width: float = 0.0,
) -> Claim:
    """Judge that ``factor`` times our gaps are below those of the best rival on every problem.

    Gaps near the width of the reference are marked.
    """
    mark = limited(width, *(_number(float(gaps.mean())) for gaps in (ours, *rivals)))
    best = torch.stack([_worst_if_failed(rival) for rival in rivals]).amin(0)
    margin = paired(ratio(best, factor * ours))
    return Claim.by(
        statement, margin.low, margin.high, f"{measured}; margin in decades {margin}{mark}"
    )


class _Comparison:
    """The curves of one comparison, by the names of their methods."""

    def __init__(self, start: str, panel: Panel, width: float = 0.0) -> None:
        self.start = start
        self.width = width
        self.panel = panel
        self.last = panel.curves[0].iterations[-1]

    def gap(self, name: str, k: int) -> float:
        """Return the mean gap, infinite if a run had failed."""
        return _number(self.panel[name].mean_at(k))

    def claims(self) -> list[Claim]:
        """Check the claims that a comparison can answer."""
        last = self.last
        return [
            self._below("LMD", ("Nesterov", "Adam"), 10, factor=5),
            self._below("LAMD", ("Nesterov", "Adam"), 50, factor=2),
            self._below("LAMD", ("wide Nesterov",), 50, factor=2),
            self._below("LAMD", ("GD", "Nesterov", "Adam"), 100),
            self._below("LAMD", ("GD", "Nesterov", "Adam"), 1000),
            self._under("LAMD", 1000, 1.0),
            self._below("LAMD", ("GD", "Nesterov", "Adam", "LPD"), last),
            self._below("LSMD", ("GD", "Nesterov", "Adam"), last),
            self._below("one-network LSMD", ("LMD",), 10, factor=3),
            self._below("one-network LSMD", ("PDHG", "early PDHG", "LPD"), 10),
            self._below("one-network LAMD", ("GD", "Nesterov", "Adam"), last),
            *(
                self._below("stencil LAMD", ("PDHG", "early PDHG", "LPD"), k, factor=2)
                for k in (10, 100)
            ),
            self._below("stencil LAMD", ("PDHG", "LPD"), last),
            *(self._plateaus(name) for name in ("GD", "Nesterov", "Adam", "LPD")),
            self._below("GD", ("Adam",), last),
            self._slope("LAMD", -2.0),
            self._slope("LASMD", -2.0),
            self._slope("LSMD", -1.0),
        ]

    def _below(self, name: str, rivals: tuple[str, ...], k: int, factor: float = 1) -> Claim:
        gaps = {rival: self.gap(rival, k) for rival in (name, *rivals)}
        margin = "" if factor == 1 else f"1/{factor:g} of "
        statement = f"{self.start}: at k = {k}, {name} is below {margin}{', '.join(rivals)}"
        measured = ", ".join(f"{rival} {gap:.3g}" for rival, gap in gaps.items())
        ours = _at(self.panel[name], k)
        others = [_at(self.panel[rival], k) for rival in rivals]
        return by_margin(statement, ours, others, measured, factor, self.width)

    def _under(self, name: str, k: int, bound: float) -> Claim:
        gaps = _at(self.panel[name], k)
        statement = f"{self.start}: at k = {k}, {name} is below {bound:g}"
        measured = f"{name} {self.gap(name, k):.3g}"
        return by_margin(statement, gaps, [torch.full_like(gaps, bound)], measured)

    def _plateaus(self, name: str) -> Claim:
        """Whether a gap falls by less than a factor of 2 over the last half of the run."""
        curve = self.panel[name]
        half = max(k for k in curve.iterations if k <= self.last // 2)
        fall = paired(ratio(_at(curve, half), _at(curve, self.last)))
        target = math.log10(2)
        gaps = ", ".join(f"{self.gap(name, k):.3g} at {k}" for k in (half, self.last))
        measured = f"{gaps}; decades {fall}"
        return Claim.by(
            f"{self.start}: {name} plateaus", target - fall.high, target - fall.low, measured
        )

    def _slope(self, name: str, claimed: float) -> Claim:
        """Fit gap ~ k^slope over the second half of the decades, problem by problem."""
        curve = self.panel[name]
        first = round(math.sqrt(self.last))
        kept = torch.tensor([k >= first for k in curve.iterations])
        k = torch.tensor(curve.iterations, dtype=torch.float64)[kept].log()
        gaps = curve.values[kept].double().clamp(min=1e-12).log()
        centred = (k - k.mean())[:, None]
        slope = paired((centred * (gaps - gaps.mean(0))).sum(0) / centred.square().sum())
        statement = (
            f"{self.start}: {name} falls about like k^{claimed:g}, or faster, over k = {first} "
            f"… {self.last}"
        )
        target = claimed + TOLERANCE
        return Claim.by(statement, target - slope.high, target - slope.low, f"fitted slope {slope}")


def _bounded(curve: Curve) -> Claim:
    """Whether a curve never rises again above what it had at k = 100."""
    early = curve.iterations.index(100)
    last = curve.iterations[-1]
    worst = float(curve.values[early:].amax())
    reached = float(curve.values[early].amax())
    statement = (
        f"{curve.name} stays bounded for {last} iterations: no gap after k = 100 above the "
        "largest there"
    )
    end = curve.mean_at(last)
    return Claim(
        statement,
        worst <= reached,
        f"largest at 100 {reached:.3g}, after it {worst:.3g}, mean at the end {end:.3g}",
    )


def _at(curve: Curve, k: int) -> Tensor:
    return curve.values[curve.iterations.index(k)].double()


def _worst_if_failed(gaps: Tensor) -> Tensor:
    return gaps.nan_to_num(nan=torch.inf)


def ratio(above: Tensor, below: Tensor) -> Tensor:
    """Return log₁₀ of a ratio of gaps, clipped to ±6; a failed run has the largest gap."""
    top, bottom = (_worst_if_failed(gaps).clamp(min=1e-12, max=1e12) for gaps in (above, below))
    return (top / bottom).log10().clamp(-6, 6)


def _number(gap: float) -> float:
    return float("inf") if math.isnan(gap) else gap
