"""The page in a real browser: it draws, everything can be done by keyboard, and it fits."""

from __future__ import annotations

import io
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
import pages

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHART = "(canvas) => Chart.getChart(canvas)"


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("no Chromium found: install the system's chromium to test pages in a browser")
    driver = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: no browser can be driven"
    )
    with driver.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    return pages.page().write(tmp_path_factory.mktemp("report") / "index.html").as_uri()


@contextmanager
def opened(browser, address, **options):
    """Open the page; at the end nothing may have been complained about, and nothing loaded but the
    page itself.
    """
    complaints = []
    loaded = []
    with browser.new_context(**options) as context:
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.on("request", lambda request: loaded.append(request.url))
        page.goto(address)
        yield page
    assert complaints == []
    assert [url for url in loaded if not url.startswith("data:")] == [address]


@pytest.fixture
def page(browser, address):
    with opened(browser, address, viewport={"width": 1280, "height": 900}) as page:
        yield page


def pixels(element):
    return np.asarray(Image.open(io.BytesIO(element.screenshot())).convert("RGB")).astype(int)


def test_it_loads_with_every_picture_and_nothing_hostile_runs(page):
    assert page.title() == f"A title {pages.HOSTILE}"
    assert page.evaluate("window.hacked") is None
    widths = page.locator("img").evaluate_all(
        "(images) => images.map((image) => image.naturalWidth)"
    )
    assert widths == 13 * [32]


def test_the_slider_moves_by_keyboard(page):
    slider = page.locator(".viewer input[type=range]")
    left = page.locator(".viewer .left")
    clip = "(image) => getComputedStyle(image).clipPath"
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.input_value() == "51"
    assert slider.get_attribute("aria-valuetext") == "51 % damaged, 49 % restored"
    page.keyboard.press("Home")
    assert left.evaluate(clip) == "inset(0px 100% 0px 0px)"
    uncovered = pixels(page.locator(".viewer"))
    page.keyboard.press("End")
    assert left.evaluate(clip) == "inset(0px 0% 0px 0px)"
    assert np.abs(pixels(page.locator(".viewer")) - uncovered).mean() > 20


def test_the_slider_follows_the_pointer(page):
    viewer = page.locator(".viewer")
    viewer.scroll_into_view_if_needed()
    box = viewer.bounding_box()
    for share in (0.25, 0.9):
        page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 3)
        assert page.locator(".viewer input[type=range]").input_value() == str(round(100 * share))


def test_any_two_pictures_of_any_scene_can_be_compared(page):
    source = "(image) => image.src"
    thumbnails = page.locator(".thumbnail:visible")
    assert thumbnails.count() == 3
    page.locator(".left-choice").select_option("original")
    page.locator(".thumbnail:visible", has_text="damaged").focus()
    page.keyboard.press("Enter")
    for side, index in (("left", 2), ("right", 0)):
        shown = page.locator(f".viewer .{side}").evaluate(source)
        assert shown == thumbnails.nth(index).locator("img").evaluate(source)
    assert thumbnails.nth(0).get_attribute("aria-pressed") == "true"
    page.locator(".scene-choice").select_option(index=1)
    assert page.locator(".scene:visible").get_attribute("data-scene") == pages.HOSTILE
    assert page.locator(".left-choice").input_value() == "original"


def test_the_legend_shows_and_hides_curves_by_keyboard(page):
    chart = page.locator(".chart").first
    canvas = chart.locator("canvas")
    button = chart.locator(".legend button", has_text="LAMD")
    canvas.scroll_into_view_if_needed()
    drawn = pixels(canvas)
    for key, pressed in (("Space", "false"), ("Enter", "true")):
        button.focus()
        page.keyboard.press(key)
        assert button.get_attribute("aria-pressed") == pressed
        assert canvas.evaluate(f"(c) => ({CHART})(c).isDatasetVisible(1)") == (pressed == "true")
        assert (np.abs(pixels(canvas) - drawn).max() > 50) == (pressed == "false")


def test_the_axis_switches_between_iterations_and_seconds_and_keeps_what_is_hidden(page):
    chart = page.locator(".chart").first
    canvas = chart.locator("canvas")
    last = f"(c) => ({CHART})(c).data.datasets.map((d) => d.data.at(-1).x)"
    assert canvas.evaluate(last) == [399, 399, 399]
    chart.locator(".legend button").first.click()
    chart.locator("input[value=iterations]").focus()
    page.keyboard.press("ArrowRight")
    assert canvas.evaluate(last) == pytest.approx([3.99, 7.98, 11.97])
    assert canvas.evaluate(f"(c) => ({CHART})(c).scales.x.options.title.text") == "seconds"
    assert canvas.evaluate(f"(c) => ({CHART})(c).scales.x.type") == "logarithmic"
    assert not canvas.evaluate(f"(c) => ({CHART})(c).isDatasetVisible(0)")
    page.keyboard.press("ArrowLeft")
    assert canvas.evaluate(last) == [399, 399, 399]


def test_panels_against_seconds_begin_with_them(page):
    canvas = page.locator(".chart").nth(1).locator("canvas")
    assert canvas.evaluate(f"(c) => ({CHART})(c).scales.x.options.title.text") == "seconds"
    assert canvas.evaluate(f"(c) => ({CHART})(c).scales.x.type") == "linear"


def test_the_view_is_zoomed_moved_and_reset(page):
    chart = page.locator(".chart").first
    canvas = chart.locator("canvas")

    def view():
        return canvas.evaluate(
            f"(c) => {{ const s = ({CHART})(c).scales.x; return [s.min, s.max]; }}"
        )

    whole = view()
    chart.get_by_role("button", name="Zoom in").click()
    near = view()
    assert near[1] / near[0] < whole[1] / whole[0]
    canvas.focus()
    page.keyboard.press("ArrowRight")
    moved = view()
    assert moved[0] > near[0]
    assert moved[1] > near[1]
    page.keyboard.press("0")
    assert view() == whole
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.6 * box["height"], steps=4)
    page.mouse.up()
    dragged = view()
    assert whole[0] < dragged[0] < dragged[1] < whole[1]
    chart.get_by_role("button", name="Reset").click()
    assert view() == whole


def test_everything_that_does_something_can_be_reached_by_tab(page):
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.add(
            page.evaluate(
                "document.activeElement.tagName + (document.activeElement.className || '')"
            )
        )
    assert {
        "A",
        "SELECTleft-choice",
        "BUTTONthumbnail",
        "CANVAS",
        "SUMMARY",
        "BUTTON",
        "INPUT",
    } <= seen


@pytest.mark.parametrize("width", [375, 320])
def test_it_fits_on_a_phone(browser, address, width):
    with opened(
        browser, address, viewport={"width": width, "height": 780}, has_touch=True, is_mobile=True
    ) as page:
        page.locator("details").evaluate_all("(all) => all.forEach((one) => { one.open = true; })")
        assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
        page.locator(".viewer").scroll_into_view_if_needed()
        box = page.locator(".viewer").bounding_box()
        page.touchscreen.tap(box["x"] + 0.75 * box["width"], box["y"] + 20)
        assert page.locator(".viewer input[type=range]").input_value() == "75"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_light_and_dark(browser, address, scheme):
    with opened(browser, address, color_scheme=scheme) as page:
        paper, *inks = (
            page.locator(name).first.evaluate(
                f"(e) => getComputedStyle(e).{what}.match(/\\d+/g).map(Number)"
            )[:3]
            for name, what in (
                ("body", "backgroundColor"),
                ("body", "color"),
                (".lead", "color"),
                ("nav a", "color"),
                (".fails .verdict", "color"),
                (".holds .verdict", "color"),
            )
        )
        assert (luminance(paper) > 0.5) == (scheme == "light")
        for ink in inks:
            dark, light = sorted((luminance(ink), luminance(paper)))
            assert (light + 0.05) / (dark + 0.05) > 4.5


def luminance(colour):
    """Relative luminance as WCAG defines it."""
    shares = [c / 255 for c in colour]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_charts_follow_when_the_scheme_changes(page):
    canvas = page.locator("canvas").first
    colours = f"(c) => ({CHART})(c).data.datasets.map((d) => d.borderColor)"
    changed = f"(before) => ({colours})(document.querySelector('canvas')).join() !== before"
    light = canvas.evaluate(colours)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(changed, arg=",".join(light))
    dark = canvas.evaluate(colours)
    assert not set(light) & set(dark)
    page.emulate_media(color_scheme="light")
    page.wait_for_function(changed, arg=",".join(dark))
    assert canvas.evaluate(colours) == light


def test_without_scripts_pictures_and_numbers_remain(browser, address):
    with opened(browser, address, java_script_enabled=False) as page:
        assert page.locator(".thumbnail:visible").count() == 6
        assert page.locator(".viewer").is_hidden()
        assert page.locator("summary").first.is_visible()


def test_a_strip_shows_one_picture_at_a_time_by_keyboard(page):
    strip = page.locator(".strip")
    slider = strip.locator("input")
    assert strip.locator("figure:visible figcaption").inner_text().startswith("restored")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert strip.locator("figure:visible").count() == 1
    assert strip.locator("figure:visible figcaption").inner_text().startswith("damaged")
    assert slider.get_attribute("aria-valuetext").startswith("damaged")


def test_pictures_are_shown_pixel_by_pixel_and_move_together(browser, address):
    with opened(browser, address, viewport={"width": 390, "height": 780}) as page:
        page.locator(".full-size").focus()
        page.keyboard.press("Enter")
        assert page.locator(".viewer").is_hidden()
        images = page.locator(".pane img")
        assert [image.bounding_box()["width"] for image in images.all()] == [32, 32]
        panes = page.locator(".pane")
        panes.evaluate_all(
            "(all) => all.forEach((p) => { p.style.width = '20px'; p.style.height = '15px'; })"
        )
        panes.nth(0).evaluate("(pane) => pane.scrollTo(7, 5)")
        page.wait_for_function("() => document.querySelectorAll('.pane')[1].scrollTop === 5")
        assert panes.nth(1).evaluate("(pane) => [pane.scrollLeft, pane.scrollTop]") == [7, 5]
        assert page.locator(".panes figcaption").all_inner_texts() == ["damaged", "restored"]
        page.locator(".full-size").click()
        assert page.locator(".viewer").is_visible()


def test_every_column_of_a_wide_table_is_in_sight_on_a_phone(browser, address):
    with opened(browser, address, viewport={"width": 390, "height": 780}) as page:
        cells = page.locator("table.wide").last.locator("td")
        assert cells.count() == 4
        for cell in cells.all():
            box = cell.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390
        label = cells.first.evaluate("(cell) => getComputedStyle(cell, '::before').content")
        assert label == '"PSNR"'


def test_a_file_is_linked_and_only_as_a_file(page):
    link = page.locator("table.wide a")
    assert link.inner_text() == "a b.png"
    assert link.evaluate("(a) => a.protocol") == "file:"
    assert link.get_attribute("href") == "./javascript%3Aalert%281%29/a%20b.png"
