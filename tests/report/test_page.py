"""The page as a file: complete, self-contained, escaped, and small enough."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image

from mirrordescent import __version__
from mirrordescent._internal import files
from mirrordescent.report import (
    Claim,
    Comparison,
    Curve,
    Dots,
    Page,
    Panel,
    Picture,
    Section,
    Table,
    charts,
)
from mirrordescent_experiments.result import Result

sys.path.insert(0, str(Path(__file__).parent))
import pages

VOID = {"img", "input", "meta", "link", "br", "line"}


class Reader(HTMLParser):
    """Read a page: its elements, its text, its scripts; complain about tags that do not match."""

    def __init__(self, html):
        super().__init__()
        self.open = []
        self.elements = []
        self.texts = []
        self.data = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if "script" not in self.open and "style" not in self.open:
            self.texts.append(text)
        elif self.elements[-1][1].get("type") == "application/json":
            self.data.append(json.loads(text, parse_constant=pytest.fail))

    def images(self):
        sources = [a["src"] for tag, a in self.elements if tag == "img" and "src" in a]
        return [
            Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) for source in sources
        ]


@pytest.fixture(scope="module")
def html():
    return pages.page().html()


@pytest.fixture(scope="module")
def reader(html):
    return Reader(html)


def test_nothing_is_loaded(html, reader):
    for tag, attributes in reader.elements:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            beside = ("./",) if tag == "a" else ()  # a link to a file loads nothing by itself
            assert attributes.get(name, "#").startswith(("data:", "#", *beside)), (tag, attributes)
    assert not re.search(r"@import|url\(", html[: html.index("</style>")])
    assert "default-src 'none'" in html


def test_what_looks_like_markup_is_text(reader):
    text = "".join(reader.texts)
    assert text.count(pages.HOSTILE) >= 8
    assert not any("onerror" in attributes for _, attributes in reader.elements)
    scripts = [attributes for tag, attributes in reader.elements if tag == "script"]
    assert len(scripts) == 4 + 3  # of the page and of its charts


def test_every_section_is_there_with_its_verdicts_numbers_and_versions(reader):
    text = " ".join("".join(reader.texts).split())
    for words in (
        "Pictures",
        "Claims",
        "Convergence",
        "Accuracy",
        "Multipliers",
        "29.4 dB",
        "weight",
        "0.15",
    ):
        assert words in text
    assert "1 of 2 hold here" in text
    assert "✓ holds one is less than two" in text
    assert "✗ does not hold" in text
    for words in (__version__, torch.__version__, ".".join(map(str, sys.version_info[:3]))):
        assert words in text


def test_ids_are_unique_and_links_lead_somewhere(reader):
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for tag, attributes in reader.elements if tag == "a"]
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert [link for link in links if not link.startswith("#")] == [pages.WIDE[0].address]


def test_small_pictures_are_embedded_exactly(reader):
    images = reader.images()
    assert len(images) == 9
    for image, picture in zip(images, 3 * list(pages.pictures().values()), strict=True):
        mode, planes = (
            ("RGB", picture.image) if picture.image.ndim == 3 else ("L", picture.image.unsqueeze(0))
        )
        pixels = (
            torch.tensor(list(image.convert(mode).tobytes())).reshape(24, 32, -1).movedim(-1, 0)
        )
        assert image.mode == mode
        assert torch.equal(pixels, (planes * 255).round().long())


@pytest.mark.parametrize(
    ("shape", "size"),
    [((3, 1200, 1800), (1200, 800)), ((1, 900, 300), (300, 900)), ((4, 8, 8), (8, 8))],
)
def test_pictures_of_any_size(shape, size):
    image = torch.linspace(-0.5, 1.5, shape[-1]).expand(shape)
    page = Page("A picture", sections=[Section("", Comparison({"": {"a": Picture(image)}}))])
    assert [image.size for image in Reader(page.html()).images()] == [size]


def test_pictures_of_the_wrong_shape():
    page = Page(
        "A picture",
        sections=[Section("", Comparison({"": {"a": Picture(torch.zeros(2, 3, 8, 8))}}))],
    )
    with pytest.raises(ValueError, match="a picture must have the shape"):
        page.html()


def test_a_page_of_a_noisy_photograph_stays_below_two_megabytes():
    generator = torch.Generator().manual_seed(0)
    smooth = torch.linspace(0, 1, 1800).expand(3, 1200, 1800)
    noisy = smooth + 0.05 * torch.randn(smooth.shape, generator=generator)
    pictures = {"noisy": Picture(noisy), "smooth": Picture(smooth)}
    assert len(Page("Photograph", sections=[Section("", Comparison({"": pictures}))]).html()) < 2e6


def test_a_page_of_long_curves_stays_below_two_megabytes():
    sections = [Section(f"panel {i}", Panel(4 * pages.curves(10_000))) for i in range(8)]
    assert len(Page("Curves", sections=sections).html()) < 2e6


def test_curves_keep_their_ends_and_their_numbers(reader):
    data, linear, dots = reader.data
    original = pages.curves()[1]
    points = next(series["points"] for series in data["series"] if series["name"] == "LAMD")
    assert len(points) <= charts.POINTS
    assert (points[0][0], points[-1][0]) == (1, 399)
    for k, seconds, mean, low, high in points:
        assert seconds == pytest.approx(original.seconds[k], rel=1e-4)
        assert mean == pytest.approx(original.mean_at(k), rel=1e-4)
        assert [low, high] == pytest.approx(
            [float(f(original.values[k])) for f in (min, max)], rel=1e-4
        )
    assert linear["series"][0]["points"][0][0] == 0  # only a logarithmic axis has no 0
    assert [point for series in dots["series"] for point in series["points"]] == [
        [i, i] for i in range(12)
    ]


def test_failed_runs_and_zeros_can_be_drawn():
    values = torch.tensor([[1.0], [0.0], [torch.nan], [torch.inf]])
    page = Page(
        "Failed", sections=[Section("", Panel([Curve("GD", [0, 1, 2, 3], [0, 1, 2, 3], values)]))]
    )
    points = Reader(page.html()).data[0]["series"][0]["points"]
    assert [point[2] for point in points] == [charts.FLOOR, None, None]


@pytest.mark.parametrize("positions", [range(1, 5001), [1, 2, 3, *range(1000, 2000)]])
@pytest.mark.parametrize("logarithmic", [True, False])
def test_thinned_points_are_nowhere_further_apart_than_they_must_be(positions, logarithmic):
    kept = [positions[i] for i in charts.thinned(positions, logarithmic, most=50)]
    assert len(kept) <= 50
    assert (kept[0], kept[-1]) == (positions[0], positions[-1])
    for position in positions:
        following = min(k for k in kept if k >= position)
        between = following / position if logarithmic else following - position
        step = (kept[-1] / kept[0]) ** (1 / 49) if logarithmic else (kept[-1] - kept[0]) / 49
        assert between <= step + 1 or following == min(k for k in positions if k > 3)


def test_numbers_are_set_flush_right_and_words_are_not():
    rows = [
        ("GD", "0.1", "1.2e-05", "12.5 dB", "ok"),
        ("LMD", "diverged", "3", "9.1 dB", "–"),
        ("A", "1", "2", "–", "ok"),
    ]
    html = Page("", sections=[Section("", Table(("method", "a", "b", "c", "status"), rows))]).html()
    cells = [a.get("class") for tag, a in Reader(html).elements if tag in ("th", "td")]
    assert cells == 4 * [None, "number", "number", "number", None]


def test_a_failure_leaves_the_old_page(tmp_path, monkeypatch):
    path = pages.page().write(tmp_path / "new" / "index.html")
    before = path.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="a picture must have the shape"):
        Page("", sections=[Section("", Comparison({"": {"a": Picture(torch.zeros(9))}}))]).write(
            path
        )
    monkeypatch.setattr(files.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        Page("another").write(path)
    assert path.read_text(encoding="utf-8") == before
    assert list(path.parent.iterdir()) == [path]


def test_results_of_experiments_are_pages(tmp_path):
    result = Result("inpaint", "TV inpainting", {"scale": "quick"})
    result.claims = [Claim("a < b", True, "a 1, b 2")]
    result.tables["at the end"] = Table(("method", "gap"), [("GD", "1")])
    result.pictures["phantom"] = {name: picture.image for name, picture in pages.pictures().items()}
    result.panels["comparison"] = Panel(pages.curves())
    result.groups["multipliers"] = {"first": torch.rand(4), "second": torch.rand(5)}
    result.write(tmp_path)
    reader = Reader((tmp_path / "index.html").read_text(encoding="utf-8"))
    text = "".join(reader.texts)
    for words in (
        "TV inpainting",
        "a < b",
        "At the end",
        "Phantom",
        "Comparison",
        "Multipliers",
        "--scale quick",
    ):
        assert words in text
    assert len(reader.images()) == 3
    assert [len(data["series"]) for data in reader.data] == [3, 2]
    shown = next(
        attributes for _, attributes in reader.elements if attributes.get("class") == "comparison"
    )
    assert (shown["data-before"], shown["data-after"]) == ("restored", "")


def test_bars_in_cells_do_not_end_them_in_markdown():
    table = Table(("x", "|x|"), [("-1", "1")])
    assert table.markdown().splitlines() == ["| x | \\|x\\| |", "| --- | --- |", "| -1 | 1 |"]


def test_dots_are_also_numbers():
    table = charts.table(Dots({"a": torch.tensor([3.0, 1.0, 2.0])}, "multiplier"))
    assert list(table.rows) == [("a", "3", "1", "2", "3")]
