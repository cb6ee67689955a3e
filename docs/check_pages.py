"""Check the built documentation in a browser: ``python docs/check_pages.py out/docs``.

- No page is taller than 15 000 pixels in a window 1400 pixels wide.
- A search for each of the common subjects finds its guide first.
- Every local link leads to a file, and to an anchor that exists in it. Listings of source code,
  which Sphinx links to names that no page shows, are not checked.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from playwright.sync_api import Page, sync_playwright

WIDTH = 1400
TALLEST = 15_000

FIRST_RESULTS = {
    "inpainting": ("solve.html", "gallery/photograph.html"),
    "quadratic program": ("gallery/quadratic-program.html", "from-cvxpy.html"),
    "AdamW": ("from-adamw.html",),
    "own problem": ("learn.html", "gallery/own-class.html"),
    "certificate": ("certificates.html",),
}
"""Pages of which one must be the first result of a search."""


class Links(HTMLParser):
    """Collects the anchors and the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note the identifier and the target of an element."""
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name in ("href", "src") and value and tag != "base":
                self.links.append(value)


@functools.cache
def links_of(path: Path) -> Links:
    """Read the links and anchors of a page."""
    links = Links()
    links.feed(path.read_text(encoding="utf-8"))
    return links


def broken_links(folder: Path) -> Iterator[str]:
    """Yield the local links that lead nowhere."""
    for page in sorted(folder.rglob("*.html")):
        if "_modules" in page.parts:
            continue
        for link in links_of(page).links:
            address, anchor = urldefrag(link)
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            target = (page.parent / unquote(urlsplit(address).path)).resolve() if address else page
            if not target.exists():
                yield f"{page.relative_to(folder)}: {link} does not exist"
                continue
            anchors = links_of(target).anchors if target.suffix == ".html" else {unquote(anchor)}
            if anchor and unquote(anchor) not in anchors:
                yield f"{page.relative_to(folder)}: {link} has no such anchor"


def heights(page: Page, address: str, folder: Path) -> dict[str, int]:
    """Return the height of every page, except listings of source code."""
    found = {}
    for path in sorted(folder.rglob("*.html")):
        name = path.relative_to(folder).as_posix()
        if name.startswith(("_modules/", "_static/")):
            continue
        page.goto(f"{address}/{name}")
        found[name] = int(page.evaluate("document.documentElement.scrollHeight"))
    return found


def search(page: Page, address: str, words: str) -> list[str]:
    """Return the pages that a search finds, the best one first."""
    page.goto(f"{address}/search.html?q={words.replace(' ', '+')}")
    page.wait_for_selector("#search-results ul.search li a", timeout=20_000)
    page.wait_for_timeout(500)  # results are added one after another
    links = page.eval_on_selector_all(
        "#search-results ul.search > li > a", "found => found.map(each => each.href)"
    )
    return [urldefrag(link).url.split("?")[0].removeprefix(f"{address}/") for link in links]


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> int:
    """Print the heights and the results of searches; return 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("out/docs"))
    folder = parser.parse_args().folder.resolve()
    faults = list(broken_links(folder))
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=options)
        page = chromium.new_page(viewport={"width": WIDTH, "height": 900})
        tall = heights(page, address, folder)
        for name, height in sorted(tall.items(), key=lambda each: -each[1])[:12]:
            print(f"{height:6d} pixels  {name}")
        faults += [
            f"{name} is {height} pixels tall, at most {TALLEST} are allowed: split it"
            for name, height in tall.items()
            if height > TALLEST
        ]
        for words, wanted in FIRST_RESULTS.items():
            results = search(page, address, words)
            print(f"{words}: {', '.join(results[:4])}")
            if not results or results[0] not in wanted:
                faults.append(f"a search for {words!r} should find {' or '.join(wanted)} first")
        chromium.close()
    server.shutdown()
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
