"""Every claim of the paper about its experiments, judged by the summaries that are stored.

Each is judged once: by the claim of an experiment that states it, or by means and runs that a
summary has. What no stored run answers is *not measured*; results whose entries are not those
shipped, or not known, are marked as stale. A claim about a map that was learned with far fewer
meta-steps than in the paper, and that fails, is *not decided at this budget*.
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

from mirrordescent import zoo
from mirrordescent.report import Table
from mirrordescent.report.content import NOT_MEASURED, Claim
from mirrordescent_experiments.claims import limited
from mirrordescent_experiments.extensions import NO_MAP
from mirrordescent_experiments.intervals import paired
from mirrordescent_experiments.learned_networks import PRINTED, PRINTED_CONTROL, SHORTER
from mirrordescent_experiments.provenance import problems
from mirrordescent_experiments.result import VERDICTS, WIDTH

NO_INTERVAL = "interval not known"
AT_THIS_BUDGET = "not decided at this budget"
ADEQUATE = 400
"""Meta-steps from which on a map counts as learned as printed, 20 times those of the shortest."""
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

    def limited(self, *gaps: float) -> str:
        """Return a remark if the smallest of some gaps is near the accuracy of the reference."""
        return limited(self.data["settings"].get(WIDTH, 0.0), *gaps)


Judge: TypeAlias = Callable[[Summary], Judged | None]


@dataclass(frozen=True)
class PaperClaim:
    """A claim, the experiment that answers it, and how.

    Args:
        statement: Statement.
        experiment: Name of the experiment.
        judge: Function of the experiment's summary that returns the verdict.
        on: What it was measured on, with settings of the experiment in braces.
        entries: Learned methods that the claim is about, whose budgets count; by default those of
            the experiment.
        short: Whether the experiment itself learns a map, with far fewer meta-steps than the paper.
    """

    statement: str
    experiment: str
    judge: Judge
    on: str = ""
    entries: tuple[str, ...] | None = None
    short: bool = False

    @property
    def learned(self) -> tuple[str, ...]:
        """Learned methods that the claim is about."""
        return ENTRIES.get(self.experiment, ()) if self.entries is None else self.entries


@dataclass(frozen=True)
class JudgedClaim(Claim):
    """A claim of the paper with its verdict.

    Args:
        conditions: Number of problems, data, and budget of the learned maps.
        short: Whether the claim fails, and its maps were learned with a short budget.
    """

    conditions: str = ""
    short: bool = False

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return AT_THIS_BUDGET if self.short else super().verdict


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
        mark = summary.limited(means[last])
        low = high = factor
        if kept[0] is not None and kept[1] is not None:
            decades = paired((kept[0] / kept[1]).log10())
            low = 10**decades.low
            high = 10**decades.high
            text += f"; falls by a factor of {factor:.3g} [{low:.3g}, {high:.3g}]"
        else:
            text += f"; falls by a factor of {factor:.3g}, {NO_INTERVAL}"
        if least is not None:
            return (True if low >= least else False if high < least else None), text + mark
        assert most is not None
        return (True if high <= most else False if low > most else None), text + mark

    return judge


def ordered(panel: str, methods: Sequence[str], k: int) -> Judge:
    """Judge that gaps at an iteration are in this order, with the first below all others."""

    def judge(summary: Summary) -> Judged | None:
        means = {method: summary.means(panel, method) for method in methods}
        if not all(found and k in found for found in means.values()):
            return None
        ends = {method: found[k] for method, found in means.items() if found}
        text = ", ".join(f"{method} {gap:.3g}" for method, gap in ends.items())
        kept = [
            each
            for each in (summary.runs(panel, method, k) for method in methods)
            if each is not None
        ]
        if len(kept) < len(methods):
            return None, f"{text}; {NO_INTERVAL}{summary.limited(*ends.values())}"
        margin = paired((torch.stack(kept[1:]).amin(0) / kept[0]).log10())
        holds = True if margin.low > 0 else False if margin.high < 0 else None
        return holds, f"{text}; margin in decades {margin}{summary.limited(*ends.values())}"

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


def due_to_map(
    method: str,
    rivals: Sequence[str],
    counts: Sequence[int],
    control: str = "",
    panel: str = "comparison from y",
    control_panel: str = "controls from y",
) -> Judge:
    """Judge that the lead of a method is due to its map.

    At every count the method must be ahead of the best rival, and its map must account for at least
    half of the decades of this lead: the lead of the method over its control, the same method
    learned without a map, is at least half of its lead over the rival.
    """
    control = control or f"{method}{NO_MAP}"

    def judge(summary: Summary) -> Judged | None:
        lows = []
        highs = []
        words = []
        for k in counts:
            ours = summary.runs(panel, method, k)
            alone = summary.runs(control_panel, control, k)
            others = [summary.runs(panel, rival, k) for rival in rivals]
            known = [each for each in others if each is not None]
            if ours is None or alone is None or len(known) < len(rivals):
                return _lead_of_means(summary, (method, control, *rivals), counts, panel)
            lead = (torch.stack(known).amin(0) / ours).log10()
            worth = (alone / ours).log10()
            margins = paired(lead), paired(worth - lead / 2)
            lows.append(min(each.low for each in margins))
            highs.append(min(each.high for each in margins))
            words.append(
                f"k = {k}: {paired(lead)} decades ahead of {', '.join(rivals)}, "
                f"{paired(worth)} of its control"
            )
        holds = True if min(lows) > 0 else False if min(highs) < 0 else None
        return holds, "; ".join(words)

    return judge


def _lead_of_means(
    summary: Summary, methods: Sequence[str], counts: Sequence[int], panel: str
) -> Judged | None:
    """Return mean losses without a verdict, where the single runs were not kept."""
    curves = {name: summary.means(panel, name) for name in methods}
    if not all(curves.values()):
        return None
    words = [
        f"k = {k}: {', '.join(f'{name} {found[k]:.3g}' for name, found in curves.items() if found)}"
        for k in counts
    ]
    gaps = [found[k] for found in curves.values() if found for k in counts]
    return None, f"{'; '.join(words)}; {NO_INTERVAL}{summary.limited(*gaps)}"


def ends_below(panel: str, method: str, rival: str, k: int) -> Judge:
    """Judge that the mean loss of a method at an iteration is below a rival's, on the same runs."""

    def judge(summary: Summary) -> Judged | None:
        ours = summary.runs(panel, method, k)
        theirs = summary.runs(panel, rival, k)
        if ours is None or theirs is None:
            return None
        margin = paired(theirs - ours)
        holds = True if margin.low > 0 else False if margin.high < 0 else None
        text = f"{method} {float(ours.mean()):.3g}, {rival} {float(theirs.mean()):.3g}"
        return holds, f"{text}; margin {margin.mean:.3g} [{margin.low:.3g}, {margin.high:.3g}]"

    return judge


def robust(claim: str, k: int) -> Judge:
    """Judge that a claim holds under every condition on which an experiment states it."""

    def judge(summary: Summary) -> Judged | None:
        found = {
            each["statement"].partition(f": at k = {k}")[0]: each["holds"]
            for each in summary.data["claims"]
            if each["statement"].endswith(f"at k = {k}, {claim}")
        }
        if not found:
            return None
        failed = [where for where, holds in found.items() if holds is False]
        undecided = [where for where, holds in found.items() if holds is None]
        holds = False if failed else None if undecided else True
        text = f"holds on {len(found) - len(failed) - len(undecided)} of {len(found)}"
        return holds, text + (f"; not: {', '.join(failed)}" if failed else "")

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
TRAINING = "training loss"
BASELINES = ("GD", "Nesterov", "Adam")
EARLY = (50, 100)
"""Counts at which the paper sees the speed-up of LAMD over Nesterov and Adam."""
SENTENCE = "the speed-up of {} is due to its learned mirror map"
FEWSHOT = ("omniglot-diagonal-printed",)
PRINTED_START = "omniglot-reptile-init-printed"
"""Start learned by Reptile from 10⁵ tasks; the paper used 5·10⁵."""
FROM_REPTILE = ("omniglot-diagonal-reptile-printed", PRINTED_START)
MOONS = "{networks} networks; multipliers learned in {meta_steps} meta-steps of {untied_batch}"
ENTRIES = {
    "denoise": ("ellipse-denoise-pair",),
    "inpaint": ("photo-inpaint-pair",),
    "inpaint-time": ("photo-inpaint-pair",),
    "svm": ("mnist49-svm-pair",),
    "mlp": ("mnist-mlp-spline-printed",),
    "cnn": ("mnist-cnn-diagonal-printed",),
    "fewshot": (*FEWSHOT, *FROM_REPTILE),
}
"""Learned methods that the claims of an experiment are about."""
ON = {
    "denoise": "{problems} ellipse phantoms, {side}²",
    "inpaint": "{problems} photographs, {side}²",
    "inpaint-time": "{problems} photographs, {iterations} steps",
    "baseline-grids": "{problems} problems a task, {iterations} steps",
    "error-terms": "{problems} problems, {side}², {iterations} steps",
    "generalisation": "{problems} photographs",
    "svm": "{starts} starts; features of {features}",
    "moons": MOONS,
    "mlp": "{networks} networks, {data}, {steps} steps",
    "cnn": "{networks} networks, {data}, {steps} steps",
    "cnn-time": "{networks} networks, {data}, {steps} steps",
    "fewshot": "{tasks} + {further} tasks, {characters}, {steps} steps",
}
"""What the claims of an experiment are measured on, with its settings in braces."""
CHOSEN_ON = "{extension_problems} training problems, {side}²"
"""What the claims about extension rules of images are measured on."""
EXTENDED = "{} extensions"
fastest = partial(fall, COMPARED)
CLAIMS: tuple[PaperClaim, ...] = (
    PaperClaim(
        "denoising: reciprocal steps are best for LAMD",
        "denoise",
        stated("the reciprocal rule is best for LAMD"),
        CHOSEN_ON,
    ),
    PaperClaim(
        "denoising: reciprocal steps are best for LSMD",
        "denoise",
        stated("the reciprocal rule is best for LSMD"),
        CHOSEN_ON,
    ),
    PaperClaim(
        'denoising: the constant step "mean" does not converge in LAMD',
        "denoise",
        fall("LAMD extensions", "mean", most=1.1),
        CHOSEN_ON,
    ),
    PaperClaim(
        'denoising: the constant step "mean" does not converge in LSMD',
        "denoise",
        fall("LSMD extensions", "mean", most=1.1),
        CHOSEN_ON,
    ),
    PaperClaim(
        "denoising: constant steps are best for LASMD",
        "denoise",
        stated("a constant step is best for LASMD"),
        CHOSEN_ON,
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
        entries=(),
    ),
    PaperClaim(
        "denoising: LPD plateaus",
        "denoise",
        fastest("LPD", most=2),
        entries=(),
    ),
    PaperClaim(
        "denoising: Adam is poor, it ends above GD and Nesterov",
        "denoise",
        ordered(COMPARED, ("GD", "Adam"), 2000),
        entries=(),
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
        "denoising: LSMD ends below GD, Nesterov and Adam",
        "denoise",
        ordered(COMPARED, ("LSMD", *BASELINES), 2000),
    ),
    PaperClaim(
        "denoising: LASMD ends below GD, Nesterov and Adam",
        "denoise",
        ordered(COMPARED, ("LASMD", *BASELINES), 2000),
    ),
    PaperClaim(
        f"denoising: {SENTENCE.format('LAMD')}",
        "denoise",
        due_to_map("LAMD", ("Nesterov", "Adam"), EARLY),
    ),
    PaperClaim(
        "inpainting: reciprocal steps are best for LAMD",
        "inpaint",
        stated("the reciprocal rule is best for LAMD"),
        CHOSEN_ON,
    ),
    PaperClaim(
        "inpainting: reciprocal steps are best for LSMD",
        "inpaint",
        stated("the reciprocal rule is best for LSMD"),
        CHOSEN_ON,
    ),
    PaperClaim(
        "inpainting: constant steps are best for LASMD",
        "inpaint",
        stated("a constant step is best for LASMD"),
        CHOSEN_ON,
    ),
    PaperClaim(
        "inpainting: LSMD ends below GD, Nesterov and Adam",
        "inpaint",
        ordered(COMPARED, ("LSMD", *BASELINES), 2000),
    ),
    PaperClaim(
        "inpainting: LASMD ends below GD, Nesterov and Adam",
        "inpaint",
        ordered(COMPARED, ("LASMD", *BASELINES), 2000),
    ),
    PaperClaim(
        f"inpainting: {SENTENCE.format('LAMD')}",
        "inpaint",
        due_to_map("LAMD", ("Nesterov", "Adam"), EARLY),
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
        CHOSEN_ON,
    ),
    PaperClaim(
        "denoising: primal-stored LMD turns unstable, dual-stored LSMD with the same rule does not",
        "denoise",
        one_rule("reciprocal"),
        CHOSEN_ON,
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
        "inpainting: LAMD keeps its lead over Nesterov and Adam on other sizes and damage, k = 100",
        "generalisation",
        robust("LAMD is below wide Nesterov, Adam", 100),
        entries=("photo-inpaint-pair",),
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
        f"SVM: {SENTENCE.format('LAMD')}",
        "svm",
        due_to_map(
            "LAMD", ("Nesterov", "Adam"), EARLY, panel="hinge loss", control_panel="controls"
        ),
    ),
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
        f"moons: {SENTENCE.format('LMD')}: it ends below gradient descent with a tuned step",
        "moons",
        stated(f"{LOSS}: 201 multipliers ends below tuned GD"),
        short=True,
    ),
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
        f"dense networks: {SENTENCE.format('LMD')}, against SGD with a tuned step",
        "mlp",
        due_to_map("LMD", ("SGD",), (360,), "tuned SGD", TRAINING, TRAINING),
    ),
    PaperClaim(
        f"dense networks: {SENTENCE.format('LAMD*')}",
        "mlp",
        due_to_map(SHORTER, ("SGD",), (360,), PRINTED_CONTROL, TRAINING, TRAINING),
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
        "convolutional networks: LAMD*'s training loss is below Adam's",
        "cnn",
        ends_below(TRAINING, SHORTER, "Adam", 120),
    ),
    PaperClaim(
        "convolutional networks: LAMD*'s test accuracy is at least Adam's",
        "cnn",
        stated(f"{ACCURACY}: {SHORTER} ends at least at Adam − 0.2 points"),
    ),
    PaperClaim(
        f"convolutional networks: {SENTENCE.format('LMD')}, against SGD with a tuned step",
        "cnn",
        due_to_map("LMD", ("SGD",), (120,), "tuned SGD", TRAINING, TRAINING),
    ),
    PaperClaim(
        f"convolutional networks: {SENTENCE.format('LAMD*')}",
        "cnn",
        due_to_map(SHORTER, ("SGD",), (120,), PRINTED_CONTROL, TRAINING, TRAINING),
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
    PaperClaim(
        "few-shot: Adam is ahead of LMD and LAMD in test accuracy from random starts",
        "fewshot",
        stated("test accuracy: Adam is ahead of LMD", f"test accuracy: Adam is ahead of {PRINTED}"),
        entries=FEWSHOT,
    ),
    PaperClaim(
        f"few-shot: {SENTENCE.format('LMD')}: it ends below SGD with a tuned step",
        "fewshot",
        stated(f"{ENDS}: LMD is below tuned SGD"),
        entries=FEWSHOT,
    ),
    PaperClaim(
        f"few-shot: {SENTENCE.format('LAMD')}: it ends below its control",
        "fewshot",
        stated(f"{ENDS}: {PRINTED} is below {PRINTED_CONTROL}"),
        entries=FEWSHOT,
    ),
)


def paper_claims(folder: Path) -> list[JudgedClaim]:
    """Judge every claim by the summaries of a folder."""
    return [_judged(each, folder / each.experiment / "summary.json") for each in CLAIMS]


def paper_table(claims: Sequence[JudgedClaim]) -> Table:
    """Return the table of the paper's claims: verdict, numbers, and what they were measured on."""
    rows = [
        (each.statement, VERDICTS.get(each.verdict, each.verdict), each.measured, each.conditions)
        for each in claims
    ]
    return Table(("the paper", "here", "measured", "on"), rows)


def _judged(claim: PaperClaim, path: Path) -> JudgedClaim:
    statement = f"{claim.statement} ({claim.experiment})"
    if not path.exists():
        return JudgedClaim(statement, None, NOT_MEASURED)
    summary = json.loads(path.read_text(encoding="utf-8"))
    settings = {"scale": "", **summary["settings"]}
    conditions = "; ".join(part for part in (_on(claim, settings), _budget(claim.learned)) if part)
    found = claim.judge(Summary(summary))
    if found is None:
        return JudgedClaim(statement, None, NOT_MEASURED, conditions)
    holds, measured = found
    short = holds is False and (claim.short or any(map(_is_short, claim.learned)))
    stale = " [stale: " + "; ".join(why) + "]" if (why := _stale(claim, summary)) else ""
    return JudgedClaim(statement, None if short else holds, measured + stale, conditions, short)


def _stale(claim: PaperClaim, summary: dict[str, Any]) -> list[str]:
    """Return why a result is stale; other entries than those of the claim do not count."""
    provenance = summary.get("provenance")
    if not provenance or not claim.learned:
        return problems(provenance)
    used = {name: sha for name, sha in provenance["entries"].items() if name in claim.learned}
    return problems({**provenance, "entries": used})


def _on(claim: PaperClaim, settings: dict[str, Any]) -> str:
    """Return what a claim was measured on, from the settings of its experiment."""
    text = claim.on or ON[claim.experiment]
    try:
        return text.format(**settings)
    except KeyError:
        return str(settings["scale"])


def _budget(entries: Sequence[str]) -> str:
    """Return the budgets of learned methods from their cards: meta-steps of so many problems."""
    budgets = {}
    for entry in entries:
        if entry in zoo.list():
            steps, batch = meta_steps(entry)
            budgets[entry] = f"{entry}: {steps} meta-steps of {batch}" if steps else ""
    return ", ".join(text for text in budgets.values() if text)


def meta_steps(entry: str) -> tuple[int, int]:
    """Return the meta-steps of all stages of an entry, and the problems of each; 0 if not known.

    >>> meta_steps("mnist-mlp-spline-printed")
    (20, 2)
    """
    stages = [stage.get("settings", {}) for stage in zoo.card(entry).stages]
    counted = [stage for stage in stages if stage.get("meta_steps")]
    if not counted:
        return 0, 0
    return sum(stage["meta_steps"] for stage in counted), counted[0]["batch"]


def _is_short(entry: str) -> bool:
    """Return whether an entry was learned with far fewer meta-steps than in the paper."""
    if entry == PRINTED_START:
        return True
    return entry in zoo.list() and 0 < meta_steps(entry)[0] < ADEQUATE
