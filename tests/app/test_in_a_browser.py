"""The app in a real browser: open, paint, restore, compare, cancel, download, at two widths."""

from __future__ import annotations

import io
import os
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mirrordescent.app import AppServer

pytestmark = pytest.mark.usefixtures("compiled")

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
SIZES = {"narrow": (390, 844), "wide": (1400, 900)}
SCREENSHOTS = os.environ.get("APP_SCREENSHOTS")  # a folder, to look at the page


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


@pytest.fixture
def app():
    with AppServer() as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        yield server
        server.stop()
        thread.join()


@contextmanager
def opened(browser, app, size, errors=0):
    """Open the page; nothing may be loaded from elsewhere, and there are no unexpected errors."""
    complaints = []
    loaded = []
    width, height = SIZES[size]
    touch = size == "narrow"
    with browser.new_context(
        viewport={"width": width, "height": height}, has_touch=touch, accept_downloads=True
    ) as context:
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: loaded.append(request.url))
        page.goto(app.address)
        yield page
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, "the page is wider than the window"
    origin = f"http://127.0.0.1:{app.port}/"
    assert all(url.startswith((origin, "data:", "blob:")) for url in loaded)
    assert len(complaints) == errors, complaints


def photograph(height=150, width=200, noise=0.08, kind="png"):
    rows, columns = np.mgrid[:height, :width]
    smooth = 0.5 + 0.3 * np.sin(rows[..., None] / 19 + columns[..., None] / (14 + np.arange(3)))
    noisy = smooth + noise * np.random.default_rng(0).standard_normal((height, width, 3))
    file = io.BytesIO()
    Image.fromarray((noisy.clip(0, 1) * 255).astype(np.uint8)).save(file, kind)
    return file.getvalue()


def choose(page, content, name="holiday.png"):
    kind = f"image/{Path(name).suffix[1:]}"
    file = {"name": name, "mimeType": kind, "buffer": content}
    page.set_input_files("#open", file)
    page.wait_for_selector("#view:not([hidden])")
    page.locator("#before").evaluate("image => image.decode()")


def restore(page):
    page.click("#restore")
    page.wait_for_selector("#download:not([hidden])", timeout=60_000)


def downloaded(page):
    with page.expect_download() as download:
        page.click("#download")
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def keep_screenshot(page, name):
    if SCREENSHOTS is not None:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("size", SIZES)
def test_noise_is_removed_compared_and_downloaded(browser, app, size):
    with opened(browser, app, size) as page:
        keep_screenshot(page, f"{size}-empty")
        assert page.is_disabled("#restore")
        content = photograph()
        choose(page, content)
        assert "200 × 150" in page.inner_text("#caption")
        restore(page)
        assert page.inner_text("#message").startswith("noise about 8 %")
        keep_screenshot(page, f"{size}-denoised")
        for share in ("0", "100"):
            page.evaluate(
                """(share) => {
                    const slider = document.getElementById('compare');
                    slider.value = share;
                    slider.dispatchEvent(new Event('input'));
                }""",
                share,
            )
            clip = page.evaluate("document.getElementById('after').style.clipPath")
            assert f" {share}%" in clip or (share == "0" and clip.startswith("inset(0"))
        page.focus("#compare")
        page.keyboard.press("Home")
        assert page.evaluate("document.getElementById('divider').style.left") == "0%"
        name, file = downloaded(page)
    assert name == "holiday-restored.png"
    before = np.asarray(Image.open(io.BytesIO(content)), float)
    after = np.asarray(Image.open(io.BytesIO(file)), float)
    clean = np.asarray(Image.open(io.BytesIO(photograph(noise=0.0))), float)
    assert np.square(after - clean).mean() < 0.2 * np.square(before - clean).mean()


@pytest.mark.parametrize("size", SIZES)
def test_a_painted_hole_is_filled_and_the_rest_is_kept(browser, app, size):
    clean = np.array(Image.open(io.BytesIO(photograph(noise=0.0))))
    scratched = clean.copy()
    scratched[70:76, 40:160] = 255
    file = io.BytesIO()
    Image.fromarray(scratched).save(file, "png")
    with opened(browser, app, size) as page:
        choose(page, file.getvalue())
        page.click("text=Fill holes")
        page.fill("#size", "16")
        box = page.locator("#mask").bounding_box()
        scale = box["width"] / 200
        height = box["y"] + 73 * scale
        page.mouse.move(box["x"] + 37 * scale, height)
        page.mouse.down()
        page.mouse.move(box["x"] + 100 * scale, height, steps=5)
        page.mouse.move(box["x"] + 163 * scale, height, steps=5)
        page.mouse.up()
        keep_screenshot(page, f"{size}-painted")
        restore(page)
        assert "known pixels kept" in page.inner_text("#message")
        keep_screenshot(page, f"{size}-filled")
        _, content = downloaded(page)
        page.click("text=Remove noise")
        page.click("text=Fill holes")
        assert page.is_visible("#mask"), "the mask is shown again, to correct it"
    filled = np.asarray(Image.open(io.BytesIO(content))).astype(int)
    hole = (slice(70, 76), slice(40, 160))
    damage = np.abs(scratched[hole].astype(int) - clean[hole]).mean()
    assert np.abs(filled - clean)[hole].mean() < 0.1 * damage
    assert np.array_equal(filled[:50], clean[:50])
    assert np.array_equal(filled[100:], clean[100:])


def test_a_mask_is_loaded_inverted_erased_and_cleared(browser, app):
    mask = np.full((150, 200), 255, np.uint8)
    mask[60:66] = 0
    file = io.BytesIO()
    Image.fromarray(mask).save(file, "png")
    share = """() => {
        const canvas = document.getElementById('mask');
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        let holes = 0;
        for (let i = 3; i < data.length; i += 4) holes += data[i] > 64;
        return holes / (data.length / 4);
    }"""
    with opened(browser, app, "wide") as page:
        choose(page, photograph())
        page.click("text=Fill holes")
        loaded = {"name": "m.png", "mimeType": "image/png", "buffer": file.getvalue()}
        page.set_input_files("#load-mask", loaded)
        page.wait_for_selector("#message:has-text('loaded')")
        assert page.evaluate(share) == pytest.approx(6 / 150, abs=1e-3)
        page.click("#invert")
        assert page.evaluate(share) == pytest.approx(144 / 150, abs=1e-3)
        page.click("text=Erase")
        page.click("#mask", position={"x": 20, "y": 20})
        assert 0.9 < page.evaluate(share) < 144 / 150 - 1e-3
        page.click("#clear")
        assert page.evaluate(share) == 0


def test_work_is_cancelled_and_mistakes_are_said(browser, app, held_work):
    with held_work(), opened(browser, app, "wide", errors=1) as page:
        bad = {"name": "notes.png", "mimeType": "image/png", "buffer": b"no image"}
        page.set_input_files("#open", bad)
        page.wait_for_selector("#message.error")
        assert "notes.png is not an image" in page.inner_text("#message")
        choose(page, photograph())
        page.click("text=Sharpen")
        page.click("#restore")
        page.wait_for_selector("#progress:not([hidden])")
        page.wait_for_selector("#message:has-text('iteration')")
        keep_screenshot(page, "wide-running")
        page.click("#cancel")
        page.wait_for_selector("#message:has-text('cancelled')")
        assert page.is_enabled("#restore")


def test_a_photograph_is_dropped(browser, app):
    with opened(browser, app, "narrow") as page:
        page.evaluate(
            """(bytes) => {
                const transfer = new DataTransfer();
                transfer.items.add(new File([new Uint8Array(bytes)], 'dropped.png'));
                const event = new DragEvent('drop', {dataTransfer: transfer, bubbles: true});
                document.getElementById('drop').dispatchEvent(event);
            }""",
            list(photograph(40, 50)),
        )
        page.wait_for_selector("#view:not([hidden])")
        assert "dropped.png, 50 × 40" in page.inner_text("#caption")
        page.click("text=Enlarge")
        page.select_option("#factor", "3")
        restore(page)
        _, file = downloaded(page)
    assert Image.open(io.BytesIO(file)).size == (150, 120)
