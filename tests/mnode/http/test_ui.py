"""The page about the streams: what it reads says what SQL says, and a browser shows it."""

from __future__ import annotations

import copy
import json
import os
import shutil
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any
from urllib.error import HTTPError

import pytest
from kits.basics.external_servers import free_port
from kits.engines.overviews import staged

from penstock.common.errors import ConfigError, UnavailableError
from penstock.mnode.access.roles import OWNER
from penstock.mnode.admin.sandbox import Sandbox
from penstock.mnode.http.http_messages import HttpRequest, Response
from penstock.mnode.http.http_ports import OVERVIEW_PATH, ui_pages
from penstock.mnode.http.http_server import HttpListener

CHROMIUM = shutil.which("chromium")
_ABSENT = "Debian's chromium isn't installed" if CHROMIUM is None else (
    "playwright isn't installed" if find_spec("playwright") is None else "")
in_browser = pytest.mark.skipif(bool(_ABSENT) and os.environ.get("CI") != "true", reason=_ABSENT)


def text_at(port: int, path: str, authorization: str | None = None) -> str:
    headers = {} if authorization is None else {"Authorization": authorization}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def test_an_engine_opens_the_configured_ports_while_it_is_open() -> None:
    """The page, its data and the metrics have a port each or share one; with the engine they are gone."""
    ui, metrics = free_port(), free_port()
    with Sandbox(config={"uiPort": ui, "metricsPort": metrics, "trustLoopback": True}) as bed:
        bed.execute("CREATE DATABASE p")
        bed.execute("CREATE TABLE p.m (ts TIMESTAMP, v INT)")
        bed.execute("CREATE STREAM s INTO p.o AS SELECT _wstart, count(*) FROM p.m INTERVAL(1s)")
        (stream,) = json.loads(text_at(ui, OVERVIEW_PATH))["streams"]
        rows = bed.execute("SELECT stream_name, verdict, rows_in FROM information_schema.ins_streams").table
        assert rows is not None
        assert [{name: stream[name] for name in rows.column_names}] == rows.to_pylist()
        assert {task["level"]: task["downstream"] is None for task in stream["tasks"]} == {
            "source": False, "agg": False, "sink": True}
        assert "Penstock" in text_at(ui, "/")
        assert 'stream="s"' in text_at(ui, "/metrics")
        assert 'stream="s"' in text_at(metrics, "/metrics")
        with pytest.raises(OSError, match="404"):
            text_at(metrics, "/")
        with pytest.raises(UnavailableError, match=f"port {metrics}"):
            Sandbox(config={"uiPort": free_port(), "metricsPort": metrics, "trustLoopback": True})
    with pytest.raises(OSError, match="refused"):
        text_at(ui, "/")
    with Sandbox(config={"uiPort": ui, "metricsPort": ui, "trustLoopback": True}):
        assert json.loads(text_at(ui, OVERVIEW_PATH))["streams"] == []


def test_as_soon_as_there_are_users_only_they_see_the_pages() -> None:
    """Any role may look; without user and password nothing is told, and without users nothing leaves this machine."""
    ui, metrics = free_port(), free_port()
    places = ((ui, "/"), (ui, OVERVIEW_PATH), (ui, "/metrics"), (metrics, "/metrics"))
    with Sandbox(config={"uiPort": ui, "metricsPort": metrics, "trustLoopback": True}) as bed:
        bed.execute("CREATE USER keeper PASS 'keeps-all-1' ROLE admin")
        bed.execute("CREATE USER viewer PASS 'looks-only-1' ROLE read")
        for port, path in places:
            # Another one for each place: who is wrong three times in a row has to wait.
            right, wrong = (f"Basic {b64encode(text.encode()).decode()}"
                            for text in ("viewer:looks-only-1", f"viewer{port}{path}:other"))
            assert text_at(port, path, right)
            for authorization in (None, wrong):
                with pytest.raises(HTTPError, match="401") as refused:
                    text_at(port, path, authorization)
                assert refused.value.headers["WWW-Authenticate"].startswith("Basic ")
    with pytest.raises(ConfigError, match="there are no users"):
        Sandbox(config={"host": "0.0.0.0", "uiPort": ui})


def test_the_page_is_self_contained() -> None:
    """It names no other host, so it works without a network and tells nobody."""
    page = ui_pages(lambda who: {})["/"](OWNER).make().decode()
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "src=" not in page


@pytest.fixture
def listener() -> Iterator[tuple[HttpListener, dict[str, Any]]]:
    """A listener to an overview that a test may change."""
    told = staged(verdict="sink s1/v2 is the bottleneck: its rate limit of 2 MB/s", verdict_kind="sink")
    opened = HttpListener("127.0.0.1", 0, {path: page(OWNER) for path, page in ui_pages(lambda who: told).items()})
    yield opened, told
    opened.close()


def test_who_comes_too_early_is_told_when_to_come_again() -> None:
    """Programs by Retry-After, browsers by Refresh, too; the right password is let in then."""
    ui = free_port()
    with Sandbox(config={"uiPort": ui, "trustLoopback": True}) as bed:
        bed.execute("CREATE USER viewer PASS 'looks-only-1' ROLE admin")
        wrong = f"Basic {b64encode(b'viewer:other').decode()}"
        statuses = []
        while 429 not in statuses:
            with pytest.raises(HTTPError) as refused:
                text_at(ui, OVERVIEW_PATH, wrong)
            statuses.append(refused.value.code)
        assert set(statuses) == {401, 429}
        assert int(refused.value.headers["Retry-After"]) >= 1
        assert refused.value.headers["Refresh"] == refused.value.headers["Retry-After"]


@in_browser
def test_the_page_waits_as_the_engine_says() -> None:
    """It shows no error meanwhile, and looks again by itself."""
    from playwright.sync_api import expect, sync_playwright

    assert not _ABSENT
    expect.set_options(timeout=60_000)
    told, waits = staged(verdict="", verdict_kind=""), [429, 503]
    pages = {path: page(OWNER) for path, page in ui_pages(lambda who: told).items()}

    class Busy:
        methods = ("GET",)

        def answer(self, request: HttpRequest) -> Response:
            if waits:
                return Response(HTTPStatus(waits.pop(0)), b"wait", headers={"Retry-After": "2"})
            return pages[OVERVIEW_PATH].answer(request)

    opened = HttpListener("127.0.0.1", 0, {**pages, OVERVIEW_PATH: Busy()})
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{opened.port}/")
        age = page.locator("#age")
        expect(age).to_have_text("the engine asks to wait; next look in 2 s")
        expect(age).not_to_have_class("old")
        expect(page.locator("section[data-stream=s1]")).to_be_visible()
        expect(age).to_contain_text("as of")
        browser.close()
    opened.close()
    assert waits == []


@in_browser
def test_the_address_may_have_a_name_and_a_password() -> None:
    """The page asks for its data by an address without them, and is let in all the same."""
    from playwright.sync_api import expect, sync_playwright

    assert not _ABSENT
    expect.set_options(timeout=60_000)
    ui = free_port()
    with Sandbox(config={"uiPort": ui, "trustLoopback": True}) as bed, sync_playwright() as playwright:
        bed.execute("CREATE USER viewer PASS 'looks-only-1' ROLE admin")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://viewer:looks-only-1@127.0.0.1:{ui}/")
        expect(page.get_by_text("There is no stream.")).to_be_visible()
        expect(page.locator("#age")).to_contain_text("as of")
        browser.close()


@in_browser
def test_a_browser_shows_the_streams(listener: tuple[HttpListener, dict[str, Any]]) -> None:
    """Verdict, tasks with fill and rate, edges that move while rows do, watermarks and checkpoints; no complaint."""
    from playwright.sync_api import expect, sync_playwright

    assert not _ABSENT
    expect.set_options(timeout=60_000)
    opened, told = listener
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.goto(f"http://127.0.0.1:{opened.port}/")
        card = page.locator("section[data-stream=s1]")
        expect(card.locator(".verdict.bad")).to_have_text(told["streams"][0]["verdict"])
        expect(card.locator("svg g[data-task]")).to_have_count(6)
        expect(card.locator("svg path")).to_have_count(8)  # 2 sources to 2 aggs to 2 sinks
        expect(card.locator("tbody").first.locator("tr")).to_have_count(2)
        expect(card.get_by_text("COMMITTED")).to_be_visible()
        expect(card.locator(".facts").nth(1)).to_contain_text("1 late, 0 from the future")
        expect(card.locator(".facts").last).to_contain_text("audited")
        expect(card.locator("svg path.flow")).to_have_count(0)

        later = copy.deepcopy(told["streams"])
        source = next(task for task in later[0]["tasks"] if task["level"] == "source")
        source["rows_in"] += 3000
        source["rows_out"] += 30
        source["input_bytes"] = source["input_capacity"] * 9 // 10
        told["now_ms"] += 2000
        told["streams"] = later
        box = card.locator(f"g[data-task='{source['task_id']}']")
        expect(box.get_by_text("1,500 rows/s")).to_be_visible()
        expect(card.locator("svg path.flow")).to_have_count(2)
        expect(box.locator("rect.level.high")).to_have_count(1)

        told["now_ms"] += 1000
        told["streams"] = []
        expect(page.get_by_text("There is no stream.")).to_be_visible()
        opened.close()
        expect(page.locator("#age.old")).to_contain_text("no answer")
        browser.close()
    assert [each for each in complaints if "ERR_CONNECTION" not in each] == []
