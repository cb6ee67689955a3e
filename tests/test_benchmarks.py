"""What the benchmarks compute besides times."""

import math

import pytest
import torch
from benchmarks import time_to_gap
from benchmarks.measure import about, replaced, table

from mirrordescent import TVDenoising, certify, relative_gap

PAGE = """# Benchmarks

Words.

## First

1.

### A part of it

2.

## Third

3.
"""


def test_a_section_is_replaced_and_the_others_stay():
    sections = replaced(PAGE, "First", "new\n", ["First", "Second", "Third"])
    assert sections == "\n## First\n\nnew\n\n## Third\n\n3.\n"


def test_a_new_section_takes_its_place_and_unknown_ones_are_dropped():
    sections = replaced(PAGE, "Second", "2", ["Second", "First"])
    assert sections == "\n## Second\n\n2\n\n## First\n\n1.\n\n### A part of it\n\n2.\n"
    assert replaced("", "First", "1", ["First"]) == "\n## First\n\n1\n"


def test_tables_are_markdown(capsys):
    assert table(("a", "b"), iter([("1", "2")])) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    assert about("Title.\n\nText,\nmore.\n\nAnd more.\n") == "Text,\nmore.\n\nAnd more.\n"


@pytest.mark.parametrize(("margin", "least", "most"), [(8, 0, 1e-3), (0, 3e-3, 1)])
def test_split_bregman_of_scikit_image_solves_our_problem_but_for_the_border(margin, least, most):
    """Which is why it is run with a margin of mirrored pixels."""
    y = torch.rand(1, 1, 24, 24, generator=torch.Generator().manual_seed(0)).repeat_interleave(2, -1)
    problem = TVDenoising(y)
    x = time_to_gap.bregman(y, problem.weight, margin, 300)
    gap = float(relative_gap(problem.value(x), certify(problem, 1e-6).lower, problem.value(y)))
    assert least < gap < most


def test_lower_bounds_are_those_of_the_reference(compiled):
    y = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    problem = TVDenoising(y)
    lower, reference = time_to_gap.lower_bounds(problem), certify(problem, 1e-6)
    assert bool((lower <= reference.value).all())
    torch.testing.assert_close(lower, reference.lower, rtol=3e-5, atol=0)


def test_the_summary_compares_with_the_best_classical_solver_at_every_level():
    found = {
        time_to_gap.LEARNED: [1.0, 2.0, 3.0, math.inf],
        time_to_gap.HANDED_OVER: [1.0, 2.0, 3.0, 6.0],
        "PDHG, fused": [4.0, 4.0, math.inf, 5.0],
        "Nesterov": [2.0, 5.0, math.inf, math.inf],
    }
    assert time_to_gap.best_classical(found) == [2.0, 4.0, math.inf, 5.0]
    case = time_to_gap.Case("denoising", 32, 96, 1)
    row = time_to_gap.summary({(case, False): found}).splitlines()[2]
    assert row == "| denoising, 32 × 96² | y | 0.50 | 0.50 | only one | – | 1.20 | met |"
    found[time_to_gap.HANDED_OVER][-1] = 6.1
    assert "NOT MET" in time_to_gap.summary({(case, False): found})
