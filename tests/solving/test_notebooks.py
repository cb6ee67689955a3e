"""Short texts, HTML, plots and tables of results, and solving by the name of a method."""

import io
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

import mirrordescent as md
from mirrordescent._internal import html
from mirrordescent.automatic.outcome import AutoResult
from mirrordescent.methods import LBFGS
from mirrordescent.racing import Contestant, RaceResult


@pytest.fixture(scope="module")
def problem():
    generator = torch.Generator().manual_seed(0)
    return md.TVDenoising(torch.rand(2, 3, 12, 10, generator=generator), 0.1)


@pytest.fixture(scope="module")
def solution(problem):
    return md.solve(problem, "pdhg", iterations=1000, stop=md.gap(1e-2), check_every=10)


def test_texts_are_short(problem, solution):
    certificate = md.certify(problem, 1e-2, cache=False)
    for result in (solution, solution.trace, certificate):
        assert len(repr(result)) < 400
        assert "tensor" not in repr(result)
    assert "2 converged" in repr(solution)
    assert "bound: proven" in repr(certificate)


def test_html_is_well_formed_and_shows_statuses_curve_and_pictures(solution):
    root = ElementTree.fromstring(solution._repr_html_())
    texts = [cell.text for cell in root.iter("td")]
    assert "2 of 2" in texts
    line = next(root.iter("polyline")).get("points")
    assert line is not None
    heights = [float(point.split(",")[1]) for point in line.split()]
    assert len(heights) == len(solution.trace.iterations)
    assert heights[0] == min(heights)  # the first value is the largest, at the top
    assert len(list(root.iter("img"))) == 2


def test_pictures_are_pngs_of_the_pixels():
    image = torch.rand(3, 5, 7, generator=torch.Generator().manual_seed(0))
    read = Image.open(io.BytesIO(html.png(image)))
    pixels = torch.tensor(list(read.tobytes())).reshape(5, 7, 3).permute(2, 0, 1)
    assert torch.equal(pixels, (255 * image).round().long())
    grey = Image.open(io.BytesIO(html.png(image[:1] * math.nan)))
    assert grey.mode == "L"
    assert grey.getextrema() == (0, 0)
    large = Image.open(io.BytesIO(html.png(torch.zeros(1, 1500, 20))))
    assert large.size == (7, 500)


def test_a_trace_ends_with_its_run_unless_its_points_are_given(problem, solution):
    assert solution.trace.iterations[-1] == int(solution.steps.max())
    asked = md.solve(
        problem, md.PDHG(), iterations=1000, stop=md.gap(1e-2), check_every=10, trace=[0, 10, 1000]
    )
    assert asked.trace.iterations == [0, 10, 1000]
    assert torch.equal(asked.trace.at(1000), asked.value)


def test_traces_become_tables_and_plots(solution):
    pytest.importorskip("pandas")
    frame = solution.trace.to_pandas()
    assert list(frame.columns) == ["iteration", "seconds", "value 0", "value 1"]
    assert frame["value 1"].iloc[-1] == float(solution.trace.values[-1, 1])


def test_plots_have_one_line_for_each_sample(solution):
    pytest.importorskip("matplotlib")
    axes = solution.plot()
    assert len(axes.lines) == 2
    assert axes.get_yscale() == "log"
    assert solution.plot(axes) is axes


def test_methods_by_name_are_those_with_default_settings(problem, solution):
    again = md.solve(problem, md.PDHG(), iterations=1000, stop=md.gap(1e-2), check_every=10)
    assert torch.equal(again.x, solution.x)
    quadratic = md.Quadratic(torch.tensor([1.0, 4.0]), centre=torch.ones(1, 2))
    by_name = md.solve(quadratic, "l-bfgs", iterations=5)
    assert torch.equal(by_name.x, md.solve(quadratic, LBFGS(), iterations=5).x)
    by_name = md.solve(quadratic, "GD", iterations=5)
    assert torch.equal(by_name.x, md.solve(quadratic, md.GD(0.25), iterations=5).x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("method", "problem"), "the problem comes first"),
        (("problem", "class"), r"write PDHG\(…\)"),
        (("problem", "pdgh"), "did you mean 'pdhg'"),
        (("problem", "gd"), r"construct GD\(t=…\)"),
        (("problem", "md"), r"construct MD\(mirror=…"),
        (("problem", "number"), "got int"),
        (("function", "method"), r"Function\(f\) makes one"),
    ],
)
def test_arguments_in_another_order_or_of_another_type_are_explained(problem, arguments, message):
    values = {
        "problem": problem,
        "method": md.PDHG(),
        "class": md.PDHG,
        "number": 3,
        "function": torch.sum,
    }
    with pytest.raises((TypeError, ValueError), match=message):
        md.solve(*(values.get(each, each) for each in arguments))


def test_curves_of_few_or_infinite_values_are_empty():
    assert html.curve([0, 1], [1.0, math.inf], "f") == ""
    assert re.search("polyline", html.curve([0, 1], [1.0, -1.0], "f"))


def texts_of(shown):
    root = ElementTree.fromstring(shown._repr_html_())
    return " ".join(root.itertext())


def test_problems_show_their_facts_and_images(problem):
    text = texts_of(problem)
    assert "TVDenoising" in text
    assert "(3, 12, 10)" in text
    assert problem._repr_html_().count("<img") == 2
    other = md.Function(lambda x: x.sum(-1), domain=md.domains.Simplex())
    assert "Simplex()" in texts_of(other)
    assert "<img" not in other._repr_html_()


def test_entries_show_what_they_are_for():
    card = md.zoo.card("image-tv")
    assert len(repr(card)) < 300
    assert card.description in repr(card)
    for text in (card.description, card.family, "geometry"):
        assert text in texts_of(card)
    method = md.zoo.load("image-tv")
    assert texts_of(method).startswith(type(method).__name__)
    assert repr(method) in texts_of(method)


def test_verdicts_are_sentences_and_tables(problem):
    certificate = md.certify(problem, 1e-2, cache=False)
    found = certificate.verify(problem)
    assert repr(found) == f"<Verification: {found}>"
    diagnosis = md.theory.diagnose(md.GD(0.1), problem, iterations=3)
    assert len(repr(diagnosis)) < 200
    text = texts_of(diagnosis)
    for verdict in diagnosis.verdicts:
        assert verdict.assumption in text
        assert verdict.reason in text
    unseen = RaceResult(torch.tensor([3, 4]), 0.002)
    winner = Contestant("PDHG", md.PDHG(), "classical", unseen, unseen=unseen)
    result = AutoResult(
        "mine", winner.method, False, "Do not learn <it>.", 0.1, winner, None, [winner], [],
        Path("mine.safetensors"), 1.0,
    )  # fmt: skip
    assert repr(result) == "<AutoResult for mine: Do not learn <it>.>"
    assert "Do not learn <it>." in texts_of(result)
    assert "2 of 2 solved, 4 iterations, 2 ms" in texts_of(result)
