"""The paper's claims on the imaging experiments, as checks on measured curves."""

from __future__ import annotations

import math

import torch

from mirrordescent_lab.experiments.result import Claim, Curve, Panel, Result

CONSTANT = ("mean", "min", "last")
TOLERANCE = 0.25  # how far above a claimed exponent a fitted slope may lie
PAPER_RULES = {"LAMD": ("reciprocal",), "LSMD": ("reciprocal",), "LASMD": CONSTANT}


def imaging_claims(result: Result) -> list[Claim]:
    """Check every claim, on the extensions and on each comparison."""
    claims = _claims_on_extensions(result)
    for name, panel in result.panels.items():
        if name.startswith("comparison "):
            claims += _Comparison(name.removeprefix("comparison "), panel).claims()
    if "one network for long" in result.panels:
        claims += [_bounded(curve) for curve in result.panels["one network for long"].curves]
    return claims


def _claims_on_extensions(result: Result) -> list[Claim]:
    claims = []
    for method, rules in PAPER_RULES.items():
        curves = result.panels[f"{method} extensions"].curves
        last = curves[0].iterations[-1]
        best = min(curves, key=lambda curve: _number(curve.mean_at(last)))
        measured = ", ".join(f"{curve.name} {curve.mean_at(last):.3g}" for curve in curves)
        expected = "a constant step" if rules == CONSTANT else "the reciprocal rule"
        claims.append(Claim(f"{expected} is best for {method} at k = {last}", best.name in rules, measured))
    return claims


class _Comparison:
    """The curves of one comparison, by the names of their methods."""

    def __init__(self, start: str, panel: Panel) -> None:
        self.start, self.panel = start, panel
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
            *(self._below("stencil LAMD", ("PDHG", "early PDHG", "LPD"), k, factor=2) for k in (10, 100)),
            self._below("stencil LAMD", ("PDHG", "LPD"), last),
            self._storage(),
            self._slope("LAMD", -2.0),
            self._slope("LASMD", -2.0),
            self._slope("LSMD", -1.0),
        ]

    def _below(self, name: str, rivals: tuple[str, ...], k: int, factor: float = 1) -> Claim:
        gaps = {rival: self.gap(rival, k) for rival in rivals}
        ours = self.gap(name, k)
        margin = "" if factor == 1 else f"1/{factor:g} of "
        statement = f"{self.start}: at k = {k}, {name} is below {margin}{', '.join(rivals)}"
        measured = ", ".join(f"{rival} {gap:.3g}" for rival, gap in {name: ours, **gaps}.items())
        return Claim(statement, factor * ours < min(gaps.values()), measured)

    def _under(self, name: str, k: int, bound: float) -> Claim:
        gap = self.gap(name, k)
        return Claim(f"{self.start}: at k = {k}, {name} is below {bound:g}", gap < bound, f"{name} {gap:.3g}")

    def _storage(self) -> Claim:
        """Whether primal storage becomes unstable where dual storage does not."""
        numbers = {f"{name} at {k}": self.gap(name, k) for name in ("LMD", "LSMD") for k in (50, self.last)}
        rises = numbers[f"LMD at {self.last}"] > numbers["LMD at 50"]
        falls = numbers[f"LSMD at {self.last}"] < numbers["LSMD at 50"]
        measured = ", ".join(f"{name} {gap:.3g}" for name, gap in numbers.items())
        return Claim(
            f"{self.start}: primal-stored LMD rises after k = 50, dual-stored LSMD falls", rises and falls, measured
        )

    def _slope(self, name: str, claimed: float) -> Claim:
        """Fit gap ~ k^slope over the second half of the decades."""
        curve = self.panel[name]
        first = round(math.sqrt(self.last))
        points = [(k, curve.mean_at(k)) for k in curve.iterations if k >= first]
        k, gap = torch.tensor(points, dtype=torch.float64).log().T
        slope = float(((k - k.mean()) * (gap - gap.mean())).sum() / (k - k.mean()).square().sum())
        statement = f"{self.start}: {name} falls about like k^{claimed:g}, or faster, over k = {first} … {self.last}"
        return Claim(statement, slope <= claimed + TOLERANCE, f"fitted slope {slope:.2f}")


def _bounded(curve: Curve) -> Claim:
    """Whether a curve never rises again above what it had at k = 100."""
    early, last = curve.iterations.index(100), curve.iterations[-1]
    worst, reached = float(curve.values[early:].amax()), float(curve.values[early].amax())
    statement = f"{curve.name} stays bounded for {last} iterations: no gap after k = 100 above the largest there"
    end = curve.mean_at(last)
    return Claim(
        statement, worst <= reached, f"largest at 100 {reached:.3g}, after it {worst:.3g}, mean at the end {end:.3g}"
    )


def _number(gap: float) -> float:
    return float("inf") if math.isnan(gap) else gap
