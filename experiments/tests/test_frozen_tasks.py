"""The comparison on frozen tasks: what is run, and claims that can fail or stay open."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from mirrordescent import optim
from mirrordescent.recipes.general_tasks import GeneralTask, Training
from mirrordescent_experiments import frozen_tasks
from mirrordescent_experiments.contestants import ADAMW, MUON
from mirrordescent_experiments.frozen import CONDITIONS, EXPENSIVE, FROZEN, OF_ANY_LENGTH
from mirrordescent_experiments.frozen.contestants import (
    OURS,
    RIVALS,
    MuonOnMatrices,
    entry,
    takes_part,
    warmed_cosine,
)
from mirrordescent_experiments.frozen.judgement import (
    Judged,
    claims_of,
    conditions_claim,
    profile_table,
    result_of,
    tenths_to,
)
from mirrordescent_experiments.frozen.runs import Comparison
from mirrordescent_experiments.ledger import Ledger


def line(seed, directory):
    """A line is fitted to points; the held-out loss is at other points."""
    model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.linspace(-1, 1, 20)[:, None]

    def validate():
        with torch.no_grad():
            return (model(0.9 * x) - 0.9 * x).square().mean()

    return Training(model, lambda k: (model(x) - x).square().mean(), validate)


LINE = GeneralTask("line", line, 20)


def judged(ours, adamw, muon, decades=False, name="line"):
    """Losses on three networks, which differ a little."""
    task = GeneralTask(name, line, 20, decades=decades)
    spread = (0.99, 1.0, 1.01)
    return Judged(
        task,
        [ours * s for s in spread],
        {ADAMW: [adamw * s for s in reversed(spread)], MUON: [muon * s for s in spread]},
    )


def test_there_are_fifteen_tasks_of_all_kinds():
    assert len({task.name for task in FROZEN}) == 15
    names = {task.name for task in FROZEN}
    assert {*EXPENSIVE, *OF_ANY_LENGTH} <= names
    assert {task.name.split(" with ")[0] for task in CONDITIONS} == {"ViT"}


def test_the_entry_is_run_as_by_a_user():
    model = nn.Linear(2, 2)
    optimiser, scheduler = entry(1.0, "constant")(model, 30)
    expected = optim.SpectralDescent(nn.Linear(2, 2), steps=30)
    assert type(optimiser) is optim.SpectralDescent
    assert scheduler is None
    assert optimiser.param_groups[0]["lr"] == expected.param_groups[0]["lr"] == 1
    assert optimiser._rates[0](7) == expected._rates[0](7)


def test_rivals_rise_over_a_twentieth_and_fall_to_zero():
    optimiser = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=2.0)
    scheduler = warmed_cosine(optimiser, 100)
    rates = []
    for _ in range(100):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    assert rates[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert all(a >= b for a, b in pairwise(rates[5:]))
    assert rates[-1] < 2e-3


def test_muon_steps_matrices_and_adamw_the_rest():
    """Stacks are stepped matrix by matrix, and both optimisers move the tensors of the model."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(3, 4)
            self.experts = nn.Parameter(torch.randn(2, 4, 5))
            self.bias = nn.Parameter(torch.zeros(4))
            self.head = nn.Linear(4, 3)

    torch.manual_seed(0)
    model = Model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimiser = MuonOnMatrices(model, 0.1)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    alone = [nn.Parameter(matrix.clone()) for matrix in before["experts"]]
    for matrix, gradient in zip(alone, model.experts.grad, strict=True):
        matrix.grad = gradient.clone()
    torch.optim.Muon(alone, 0.1, adjust_lr_fn="match_rms_adamw").step()
    optimiser.step()
    assert len(optimiser.pairs) == 1
    torch.testing.assert_close(model.experts.detach(), torch.stack(list(alone)).detach())
    steps = (model.bias.detach() - before["bias"]).abs()
    torch.testing.assert_close(steps, torch.full((4,), 0.1 / 3), rtol=1e-4, atol=0)
    assert all((p != before[name]).any() for name, p in model.named_parameters())


def test_validation_along_a_run_changes_nothing():
    make = entry(1.0, "constant")
    end, curve = LINE.follow(make, 3)
    assert len(curve) == 10
    assert end[:2] == LINE.train(make, 3)[:2]
    assert end.test_loss == curve[-1]
    short = LINE.follow(make, 3, steps=4)[1]
    assert len(short) == 10
    assert short[0] == short[1]


def test_a_comparison_is_continued_and_judged_only_where_it_is_complete(tmp_path):
    told = []
    tasks = [LINE, GeneralTask("other line", line, 20)]
    first = Comparison(Ledger(tmp_path / "runs.json", None, told.append), tasks, 2)
    first.run_task(LINE)
    runs = len(told)
    tuned = sum(f"| {1000} |" in each for each in told)
    assert tuned >= 6  # at least three learning rates of two rivals
    again = Comparison(Ledger(tmp_path / "runs.json", None, told.append), tasks, 2)
    again.run_task(LINE)
    assert len(told) == runs
    result = result_of(again, "standard")
    assert result.settings["not measured yet"] == "other line"
    table = next(iter(result.tables.values()))
    assert [row[0] for row in table.rows] == ["line"]
    assert len(told) == runs
    assert again.ledger.may_run


def test_tuning_extends_learning_rates_while_the_best_is_at_an_end(tmp_path):
    comparison = Comparison(Ledger(None, None, lambda line: None), [LINE], 2)
    adamw = RIVALS[0]
    rate, _ = comparison.setting(LINE, adamw)
    rates = sorted(
        float(key.split(" | ")[2].split()[0]) for key in comparison.ledger.ends if ADAMW in key
    )
    assert rates[0] < rate < rates[-1]


def test_muon_takes_part_unless_the_documentation_says_so():
    muon = RIVALS[1]
    left_out = [task.name for task in FROZEN if not takes_part(task, muon)]
    assert left_out == ["fine-tuning of MiniLM", "skip-gram embeddings"]
    assert all(takes_part(task, each) for task in FROZEN for each in (OURS, RIVALS[0]))
    assert takes_part.__doc__ is not None


@pytest.mark.parametrize(
    ("results", "missing", "expected"),
    [
        ([judged(0.9, 1.0, 1.0)], [], [True, True, True, True]),
        ([judged(0.9, 1.0, 1.0)], ["tied GPT"], [None, None, None, None]),
        ([judged(1.1, 1.0, 1.0)], ["tied GPT"], [False, None, False, False]),
        ([judged(1.5, 1.6, 1.0)], [], [True, False, True, False]),
        ([judged(1.5, 1.6, 1.0, decades=True)], [], [True, True, True, False]),
    ],
)
def test_claims_can_fail_and_can_stay_open(results, missing, expected):
    assert [claim.holds for claim in claims_of(results, missing)] == expected


@pytest.mark.parametrize(
    ("factors", "expected", "holds"),
    [((1.0, 1.04), 2, True), ((1.0, 1.04), 3, None), ((1.0, 1.06), 3, False)],
)
def test_other_conditions_can_fail_and_can_stay_open(factors, expected, holds):
    rows = [(("ViT", "with batch 4"), factor) for factor in factors]
    assert conditions_claim(rows, expected).holds is holds


def test_stored_runs_are_continued(tmp_path, monkeypatch):
    monkeypatch.setenv("MIRRORDESCENT_CACHE", str(tmp_path))
    path = frozen_tasks.ledger_path()
    assert json.loads(path.read_text()) == json.loads(frozen_tasks.STORED.read_text())
    path.write_text("{}")
    assert frozen_tasks.ledger_path().read_text() == "{}"


def test_the_share_of_tasks_within_x_of_the_fewest_steps():
    """The entry reaches AdamW's last loss in half of the run; Muon never does."""
    curves = {
        OURS.name: [2.0, 1.8, 1.6, 1.4, 1.0, 0.9, 0.8, 0.8, 0.8, 0.8],
        ADAMW: [3.0] * 9 + [1.0],
        MUON: [3.0] * 10,
    }

    class Fixed:
        def curves(self, task, contestant):
            return [curves[contestant.name]] * 2

        def losses(self, task, contestant):
            return [curve[-1] for curve in self.curves(task, contestant)]

    table = profile_table(Fixed(), [LINE])
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows[OURS.name] == ("100%",) * 6
    assert rows[ADAMW] == ("0%", "0%", "0%", "0%", "100%", "100%")
    assert rows[MUON] == ("0%",) * 6
    assert tenths_to(0.5, [[1.0, 0.6]]) == math.inf


def test_a_quick_run_has_a_page(tmp_path):
    result = frozen_tasks.run("quick", None, lambda line: None)
    table = next(iter(result.tables.values()))
    assert [row[0] for row in table.rows] == ["physics residual", "Poisson equation"]
    assert result.claims == []
    result.write(tmp_path / "page")
    assert "physics residual" in (tmp_path / "page" / "claims.md").read_text()


DOCS = Path(__file__).parents[2] / "docs"
SUMMARY = DOCS / "results" / "frozen-tasks" / "summary.json"


def text_of(path):
    return " ".join(path.read_text(encoding="utf-8").split())


def test_documents_quote_the_stored_page():
    """Counts and exceptions in the documents are those of the page."""
    summary = json.loads(SUMMARY.read_text(encoding="utf-8"))
    measured = {claim["statement"]: claim["measured"] for claim in summary["claims"]}
    counts = [
        next(text for statement, text in measured.items() if f"ahead of tuned {name} " in statement)
        for name in (ADAMW, MUON)
    ]
    adamw, muon = (text.removeprefix("on ") for text in counts)
    readme = text_of(DOCS.parent / "README.md")
    limits = text_of(DOCS / "limits.md")
    assert f"AdamW on {adamw} and of tuned Muon on {muon}" in readme
    assert f"AdamW on {adamw} and of tuned Muon on {muon}" in limits
    assert f"AdamW on {adamw} and of Muon on {muon}" in text_of(DOCS / "train.md")
    assert f"a tuned Muon on {muon}" in text_of(DOCS / "from-muon.md")
    for statement, exceptions in measured.items():
        if statement.startswith(("on no task", "nowhere")):
            names = [each.split(" ×")[0] for each in exceptions.split(", ")]
            assert all(name in limits for name in names if name not in ("none", "on none so far"))
    for name in summary["settings"].get("not measured yet", "").split(", "):
        assert name in limits
