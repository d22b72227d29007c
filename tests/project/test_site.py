"""The documentation as web pages: all of docs/ is there, links lead somewhere, and a browser finds words."""

from __future__ import annotations

import functools
import html.parser
import http.server
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from kits.basics.external_servers import IN_CI
from kits.basics.places import ROOT
from kits.basics.waiting import wait_until

CHROMIUM = shutil.which("chromium")
_ABSENT = not (ROOT / ".venv" / "site").exists()
pytestmark = [pytest.mark.skipif(_ABSENT and not IN_CI, reason="mkdocs isn't installed; `make` does that"),
              pytest.mark.xdist_group("site")]
in_browser = pytest.mark.skipif((CHROMIUM is None or find_spec("playwright") is None) and not IN_CI,
                                reason="chromium or playwright isn't installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built as `make site` does; a link that leads nowhere fails that."""
    folder = tmp_path_factory.mktemp("site") / "pages"
    done = subprocess.run([ROOT / "scripts" / "make_site", str(folder)], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stderr
    return folder


class _Page(html.parser.HTMLParser):
    """What a page loads, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.links.append(given.get("href", ""))
        elif tag == "link":
            self.loads.append(given.get("href", ""))
        elif "src" in given:
            self.loads.append(given["src"])


def test_every_page_is_there_and_named_in_the_navigation(site: Path) -> None:
    """docs/README.md is the navigation; the README, the changelog and CONTRIBUTING are pages as well."""
    names = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"} | {"start", "changelog", "contributing"}
    assert {path.parent.name for path in site.glob("*/index.html")} == names
    page = _Page((site / "start" / "index.html").read_text())
    assert {f"../{name}/" for name in names - {"start"}} <= set(page.links)


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """Scripts, styles, fonts and images are the site's own, and each is there."""
    for path in site.glob("**/*.html"):
        for address in _Page(path.read_text()).loads:
            assert not re.match(r"(?:\w+:)?//", address), (path, address)
            if not address.startswith(("data:", "/")):
                assert (path.parent / address.partition("?")[0]).exists(), (path, address)


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    """Of the pages, and of places in them."""
    for part in ("docs", "scripts", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tmp_path / part)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    links = ("nosuch.md", "streams.md#nosuch")
    page = tmp_path / "docs" / "dialect.md"
    page.write_text(page.read_text() + "".join(f"\n[broken]({link})\n" for link in links))
    done = subprocess.run([tmp_path / "scripts" / "make_site", str(tmp_path / "pages")], capture_output=True, text=True,
                          check=False)
    assert done.returncode != 0
    assert [link for link in links if link not in done.stderr] == []


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Where a web server has the pages."""
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@in_browser
def test_a_browser_shows_pages_and_finds_words(address: str) -> None:
    """The first page leads to the others, and the search finds a function in the reference, without complaints."""
    from playwright.sync_api import TimeoutError, expect, sync_playwright

    expect.set_options(timeout=60_000)
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(
            f"{message.text} {message.location}") if message.type == "error" else None)
        page.goto(address)
        expect(page.locator("h1").first).to_contain_text("Penstock")
        page.get_by_role("link", name="SQL reference").first.click()
        expect(page.locator("h1").first).to_contain_text("SQL reference")
        found = page.locator(".md-search-result__item").first

        def searched() -> bool:
            """The page's scripts, once they are there, notice that the field is entered, and keys."""
            field = page.locator("input.md-search__input")
            field.blur()
            field.fill("")
            field.press_sequentially("apercentile")
            try:
                found.wait_for(timeout=1000)
            except TimeoutError:
                return False
            return True

        wait_until(searched, what="the search finds nothing")
        browser.close()
    assert complaints == []
