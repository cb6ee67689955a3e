"""Every claim of the paper about its experiments, judged by the summaries that are stored.

Each is judged once: by the claim of an experiment that states it, or by means and runs that a
summary has. What no stored run answers is *not measured*; results whose entries are not those
shipped, or not known, are marked as stale.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch

from mirrordescent.report.content import NOT_MEASURED, Claim
from mirrordescent_experiments.intervals import paired
from mirrordescent_experiments.learned_networks import PRINTED, SHORTER
from mirrordescent_experiments.provenance import problems

NO_INTERVAL = "interval not known"
LOSS = "cross-entropy on training data"
ACCURACY = "share of test data classified rightly"
ENDS = "mean training loss at the end"
REPTILE = "Reptile as printed + "
Judged: TypeAlias = tuple[bool | None, str]


@dataclass(frozen=True)
class Summary:
    """The stored summary of an experiment."""

    data: dict[str, Any]

    def stated(self, *beginnings: str) -> Judged | None:
        """Return the verdict on all claims whose statements begin with a text."""
        found = [
            c
            for c in self.data["claims"]
            for begin in beginnings
            if c["statement"].startswith(begin)
        ]
        if len(found) < len(beginnings):
            return None
        answers = [claim["holds"] for claim in found]
        holds = False if False in answers else None if None in answers else True
        return holds, "; ".join(claim["measured"] for claim in found)

    def means(self, panel: str, method: str) -> dict[int, float] | None:
        """Return the means of a curve, by iteration."""
        curves = self.data["means"].get(panel, {})
        found = next(
            (values for name, values in curves.items() if name.split(" (")[0] == method), None
        )
        return (
            None
            if found is None
            else {int(k): math.inf if v is None else v for k, v in found.items()}
        )

    def runs(self, panel: str, method: str, k: int) -> torch.Tensor | None:
        """Return every run of a curve at an iteration, if they were kept."""
        curves = self.data.get("runs", {}).get(panel, {})
        found: dict[str, Any] = next(
            (v for name, v in curves.items() if name.split(" (")[0] == method), {}
        )
        kept = found.get(str(k))
        return None if kept is None else torch.tensor([math.inf if v is None else v for v in kept])


Judge: TypeAlias = Callable[[Summary], Judged | None]


@dataclass(frozen=True)
class PaperClaim:
    """A claim, the experiment that answers it, and how."""

    statement: str
    experiment: str
    judge: Judge


def stated(*beginnings: str) -> Judge:
    """Judge by claims of the experiment."""
    return lambda summary: summary.stated(*beginnings)


def fall(panel: str, method: str, least: float | None = None, most: float | None = None) -> Judge:
    """Judge the factor by which a gap falls over the last half of a run."""

    def judge(summary: Summary) -> Judged | None:
        means = summary.means(panel, method)
        if not means:
            return None
        last = max(means)
        half = max(k for k in means if k <= last // 2)
        factor = means[half] / means[last] if math.isfinite(means[last]) else 0.0
        kept = [summary.runs(panel, method, k) for k in (half, last)]
        text = f"{method} {means[half]:.3g} at {half}, {means[last]:.3g} at {last}"
        low = high = factor
        if kept[0] is not None and kept[1] is not None:
            decades = paired((kept[0] / kept[1]).log10())
            low = 10**decades.low
            high = 10**decades.high
            text += f"; falls by a factor of {factor:.3g} [{low:.3g}, {high:.3g}]"
        else:
            text += f"; falls by a factor of {factor:.3g}, {NO_INTERVAL}"
        if least is not None:
            return (True if low >= least else False if high < least else None), text
        assert most is not None
        return (True if high <= most else False if low > most else None), text

    return judge


def ordered(panel: str, methods: Sequence[str], k: int) -> Judge:
    """Judge that gaps at an iteration are in this order, with the first below all others."""

    def judge(summary: Summary) -> Judged | None:
        means = {method: summary.means(panel, method) for method in methods}
        if not all(found and k in found for found in means.values()):
            return None
        ends = {method: found[k] for method, found in means.items() if found}
        first, *others = methods
        text = ", ".join(f"{method} {gap:.3g}" for method, gap in ends.items())
        kept = [
            each
            for each in (summary.runs(panel, method, k) for method in methods)
            if each is not None
        ]
        if len(kept) < len(methods):
            return ends[first] < min(ends[other] for other in others), f"{text}; {NO_INTERVAL}"
        margin = paired((torch.stack(kept[1:]).amin(0) / kept[0]).log10())
        holds = True if margin.low > 0 else False if margin.high < 0 else None
        return holds, f"{text}; margin in decades {margin}"

    return judge


def one_rule(rule: str) -> Judge:
    """Judge LMD and LSMD with the same rule: the one rises after k = 50, the other falls."""

    def judge(summary: Summary) -> Judged | None:
        found = summary.stated(f"with the rule {rule} for both")
        if found is not None:
            return found
        curves = {name: summary.means(f"{name} extensions", rule) for name in ("LMD", "LSMD")}
        if not all(curves.values()):
            return None
        ends = {name: (c[50], c[max(c)]) for name, c in curves.items() if c}
        text = ", ".join(
            f"{name} {a:.3g} at 50, {b:.3g} at the end" for name, (a, b) in ends.items()
        )
        rises = ends["LMD"][1] > ends["LMD"][0]
        falls = ends["LSMD"][1] < ends["LSMD"][0]
        return rises and falls, f"{text}; {NO_INTERVAL}"

    return judge


def grouped(group: str, others: Sequence[str]) -> Judge:
    """Judge that multipliers form a group: their spread is at most a tenth of the distance."""

    def judge(summary: Summary) -> Judged | None:
        found: dict[str, list[float]] = next(iter(summary.data.get("groups", {}).values()), {})
        if group not in found or not all(other in found for other in others):
            return None
        values = torch.tensor(found[group], dtype=torch.float64)
        means = [float(torch.tensor(found[other], dtype=torch.float64).mean()) for other in others]
        spread = float(values.std())
        distance = min(abs(float(values.mean()) - mean) for mean in means)
        freedom = len(values) - 1  # the interval of a standard deviation, approximately
        low, high = (spread * (1 + sign * 1.96 / math.sqrt(2 * freedom)) for sign in (-1, 1))
        holds = True if high <= distance / 10 else False if low > distance / 10 else None
        text = f"standard deviation {spread:.4f} [{low:.4f}, {high:.4f}], distance {distance:.4f}"
        return holds, text

    return judge


COMPARED = "comparison from y"
EXTENDED = "{} extensions"
fastest = partial(fall, COMPARED)
CLAIMS: tuple[PaperClaim, ...] = (
    PaperClaim(
        "denoising: reciprocal steps are best for LAMD",
        "denoise",
        stated("the reciprocal rule is best for LAMD"),
    ),
    PaperClaim(
        "denoising: reciprocal steps are best for LSMD",
        "denoise",
        stated("the reciprocal rule is best for LSMD"),
    ),
    PaperClaim(
        'denoising: the constant step "mean" does not converge in LAMD',
        "denoise",
        fall("LAMD extensions", "mean", most=1.1),
    ),
    PaperClaim(
        'denoising: the constant step "mean" does not converge in LSMD',
        "denoise",
        fall("LSMD extensions", "mean", most=1.1),
    ),
    PaperClaim(
        "denoising: constant steps are best for LASMD",
        "denoise",
        stated("a constant step is best for LASMD"),
    ),
    PaperClaim(
        "denoising: LAMD ends below GD, Nesterov and Adam",
        "denoise",
        ordered(COMPARED, ("LAMD", "GD", "Nesterov", "Adam"), 2000),
    ),
    PaperClaim(
        "denoising: LAMD ends below LPD", "denoise", ordered(COMPARED, ("LAMD", "LPD"), 2000)
    ),
    PaperClaim(
        "denoising: GD, Nesterov and Adam plateau (shown for Nesterov, the lowest)",
        "denoise",
        fastest("Nesterov", most=2),
    ),
    PaperClaim("denoising: LPD plateaus", "denoise", fastest("LPD", most=2)),
    PaperClaim(
        "denoising: Adam is poor, it ends above GD and Nesterov",
        "denoise",
        ordered(COMPARED, ("GD", "Adam"), 2000),
    ),
    PaperClaim(
        "smaller baseline steps only delay the fall and lower the plateau",
        "baseline-grids",
        stated(
            *(
                f"{t}: the next smaller step of {m} is"
                for t in ("inpaint", "denoise")
                for m in ("GD", "Nesterov", "Adam")
            )
        ),
    ),
    PaperClaim(
        "inpainting: LAMD falls like k^-2", "inpaint", stated("from y: LAMD falls about like")
    ),
    PaperClaim(
        "inpainting: LASMD falls like k^-2", "inpaint", stated("from y: LASMD falls about like")
    ),
    PaperClaim(
        "inpainting: LSMD falls like k^-1", "inpaint", stated("from y: LSMD falls about like")
    ),
    PaperClaim(
        (
            "inpainting: primal-stored LMD turns unstable, dual-stored LSMD with the same rule "
            "does not"
        ),
        "inpaint",
        one_rule("reciprocal"),
    ),
    PaperClaim(
        "denoising: primal-stored LMD turns unstable, dual-stored LSMD with the same rule does not",
        "denoise",
        one_rule("reciprocal"),
    ),
    PaperClaim(
        "inpainting: LAMD is ahead of Nesterov and Adam early",
        "inpaint",
        ordered(COMPARED, ("LAMD", "Nesterov", "Adam"), 100),
    ),
    PaperClaim(
        "inpainting: LAMD is ahead of LPD late", "inpaint", ordered(COMPARED, ("LAMD", "LPD"), 2000)
    ),
    PaperClaim(
        "LAMD is faster than Theorem 1 promises because its error term decays",
        "error-terms",
        stated("inpaint: the error term of LAMD decays"),
    ),
    PaperClaim(
        "dual updates have a much lower forward-backward error than primal ones",
        "error-terms",
        stated("inpaint: the error of a dual update", "denoise: the error of a dual update"),
    ),
    PaperClaim(
        "inpainting against time: LAMD keeps falling where the baselines plateau",
        "inpaint-time",
        stated("LAMD ends below", "LAMD is still falling"),
    ),
    PaperClaim(
        "SVM: LAMD has the lowest hinge loss", "svm", stated("LAMD has the lowest hinge loss")
    ),
    PaperClaim("SVM: LAMD does not plateau, Nesterov does", "svm", stated("LAMD does not plateau")),
    PaperClaim(
        "SVM: LSMD on batches keeps up with full-batch GD",
        "svm",
        stated("LSMD on batches is at least"),
    ),
    PaperClaim("SVM: LSMD plateaus with SGD", "svm", stated("LSMD ends at the level of SGD")),
    PaperClaim(
        "SVM: LSMD fluctuates less than SGD at the end", "svm", stated("LSMD fluctuates less")
    ),
    PaperClaim("SVM: LAMD's test error is like the baselines'", "svm", stated("LAMD's test error")),
    PaperClaim("SVM: SGD's test error is lower", "svm", stated("SGD's test error")),
    PaperClaim(
        "moons: the multipliers of A₁ form two groups",
        "moons",
        stated("the multipliers of A₁ form two groups"),
    ),
    PaperClaim(
        "moons: the multipliers of b₁ form one group",
        "moons",
        grouped("b₁", ("A₁, input 1", "A₁, input 2", "A₂")),
    ),
    PaperClaim(
        "moons: the multipliers of A₂ form one group",
        "moons",
        grouped("A₂", ("A₁, input 1", "A₁, input 2", "b₁")),
    ),
    PaperClaim("moons: 5 numbers do what 201 do", "moons", stated("5 tied multipliers reach")),
    PaperClaim(
        "dense networks: LAMD* nearly matches Adam after three epochs",
        "mlp",
        stated(f"{LOSS}: {SHORTER} ends at most 1.5 times Adam"),
    ),
    PaperClaim(
        "dense networks: LMD and LAMD* are far ahead of SGD",
        "mlp",
        stated(
            f"{LOSS}: LMD ends at most 0.333 times SGD",
            f"{LOSS}: {SHORTER} ends at most 0.333 times SGD",
        ),
    ),
    PaperClaim(
        "convolutional networks: LMD and LAMD* are competitive with Adam in loss",
        "cnn",
        stated(
            f"{LOSS}: LMD ends at most 1.25 times Adam",
            f"{LOSS}: {SHORTER} ends at most 1.25 times Adam",
        ),
    ),
    PaperClaim(
        "convolutional networks: LAMD*'s test accuracy is at least Adam's",
        "cnn",
        stated(f"{ACCURACY}: {SHORTER} ends at least at Adam − 0.2 points"),
    ),
    PaperClaim(
        "convolutional networks: the overhead in time is small",
        "cnn-time",
        stated(
            "a step of "
        ),  # of LMD, and of capped LAMD, which takes as long as one without a cap
    ),
    PaperClaim(
        "few-shot: LMD beats SGD from random starts and from Reptile's",
        "fewshot",
        stated(f"{ENDS}: LMD is below SGD", f"{ENDS}: {REPTILE}LMD is below {REPTILE}SGD"),
    ),
    PaperClaim(
        "few-shot: LAMD reaches a lower training loss than Adam from both",
        "fewshot",
        stated(
            f"{ENDS}: {PRINTED} is below Adam", f"{ENDS}: {REPTILE}{PRINTED} is below {REPTILE}Adam"
        ),
    ),
    PaperClaim(
        "few-shot: LAMD from random starts is below LAMD from Reptile's",
        "fewshot",
        stated(f"{ENDS}: {PRINTED} is below {REPTILE}{PRINTED}"),
    ),
    PaperClaim(
        "few-shot: from Reptile's start, LMD's test accuracy is like the others'",
        "fewshot",
        stated(f"test accuracy: {REPTILE}LMD is within"),
    ),
)


def paper_claims(folder: Path) -> list[Claim]:
    """Judge every claim by the summaries of a folder."""
    return [_judged(each, folder / each.experiment / "summary.json") for each in CLAIMS]


def _judged(claim: PaperClaim, path: Path) -> Claim:
    statement = f"{claim.statement} ({claim.experiment})"
    if not path.exists():
        return Claim(statement, None, NOT_MEASURED)
    summary = json.loads(path.read_text(encoding="utf-8"))
    found = claim.judge(Summary(summary))
    if found is None:
        return Claim(statement, None, NOT_MEASURED)
    holds, measured = found
    stale = (
        " [stale: " + "; ".join(why) + "]" if (why := problems(summary.get("provenance"))) else ""
    )
    return Claim(statement, holds, measured + stale)
