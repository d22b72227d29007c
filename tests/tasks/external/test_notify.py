"""NOTIFY: which events windows give, that each arrives, and what becomes of those that can't be sent."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from conftest import times
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kits.basics.external_servers import free_port
from kits.basics.places import ROOT
from kits.engines.threaded import Threaded
from kits.streams.stream_kit import StreamKit, millis, play, unhurried
from websockets.sync.server import Server, ServerConnection, serve

from penstock.common.connection import OpenedConnection
from penstock.common.errors import ConnectionFailedError, InvalidStreamError, NotSupportedError, SqlSyntaxError
from penstock.sql.dialect.parser import parse_one
from penstock.tasks.external.notify import window_events, window_notifier
from penstock.tasks.external.notify.notify_target import open_sender
from penstock.tasks.protocol.task_status import TaskStatus

T0 = 1_600_000_000_000  # 40 seconds behind a full minute
MINUTE = 60_000
Make = Callable[..., StreamKit]


class Ear:
    """What listens at the addresses; `deaf` are those that can't be reached."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, dict[str, Any]]] = []
        self.deaf: set[str] = set()

    def open(self, connection: OpenedConnection) -> _FakeSender:
        url = connection.options["url"]
        if url in self.deaf:
            raise ConnectionFailedError(f"unreachable: {url}")
        return _FakeSender(self, url)

    def events(self, url: str = "ws://a") -> list[dict[str, Any]]:
        return [event for at, _, message in self.messages if at == url for event in message["streams"][0]["events"]]

    def heard(self, url: str = "ws://a") -> list[tuple[str, str, int]]:
        """Returns (event, table, minute of its window's start), in order."""
        return [(event["eventType"].removeprefix("WINDOW_"), event["tableName"],
                 (event["windowStart"] - T0) // MINUTE) for event in self.events(url)]


class _FakeSender:
    def __init__(self, ear: Ear, url: str) -> None:
        self._ear = ear
        self._url = url

    def send(self, identity: str, text: str) -> None:
        if self._url in self._ear.deaf:
            raise ConnectionFailedError(f"unreachable: {self._url}")
        self._ear.messages.append((self._url, identity, json.loads(text)))

    def close(self) -> None:
        pass


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory, ear: Ear) -> Iterator[Make]:
    """Makes kits whose addresses are the ear, and closes them."""
    made: list[StreamKit] = []

    def make(sql: str, **options: Any) -> StreamKit:
        made.append(StreamKit(tmp_path_factory.mktemp("stream"), sql, now_ms=T0, open_url=ear.open, **options))
        return made[-1]

    yield make
    for kit in made:
        kit.close()


BOTH = "notify ('ws://a') on ('WINDOW_OPEN', 'WINDOW_CLOSE')"
FAR = 10 * MINUTE
WINDOWS = {
    "interval": "interval(10s)", "sliding": "interval(10s) sliding(5s)", "session": "session(ts, 5s)",
    "state": "state_window(voltage)", "event": "event_window start with voltage > 0 end with current < 0",
    "count": "count_window(3)",
}


def put(kit: StreamKit, *rows: tuple[int, float, int]) -> None:
    """Writes rows (table, minutes after T0, voltage) as one record, and lets the stream work them off."""
    kit.insert([(table, T0 + round(minutes * MINUTE), voltage, 0.0, "") for table, minutes, voltage in rows])
    kit.run()


def hourly(make: Make, more: str = BOTH, **options: Any) -> StreamKit:
    """A stream of a window per minute and table, whose result tables are called as the source's."""
    return make("create stream s into o subtable(tbname) as select _wstart, count(*) c, sum(voltage) v from meters "
                f"partition by tbname interval(1m, 40s) {more}", **options)


# -- what is told ---------------------------------------------------------------------------------------------------


def test_an_interval_opens_and_closes(make: Make, ear: Ear) -> None:
    """The first row of a table opens its window; the watermark closes it, with its result, and with the same id."""
    kit = hourly(make)
    put(kit, (0, 0, 5), (1, 0.5, 7))
    put(kit, (0, 0.2, 5))
    table, other = "d0_o_101", "d1_o_102"
    assert ear.heard() == [("OPEN", table, 0), ("OPEN", other, 0)]
    put(kit, (0, 1, 1))
    assert ear.heard()[2:] == [("OPEN", table, 1), ("CLOSE", table, 0), ("CLOSE", other, 0)]
    opened, _, _, closed, _ = ear.events()
    assert closed == {
        "tableName": table, "eventType": "WINDOW_CLOSE", "eventTime": kit.clock.now_ms(),
        "windowId": opened["windowId"], "eventId": closed["eventId"], "windowType": "Time", "groupId": "101",
        "windowStart": T0, "windowEnd": T0 + MINUTE, "result": {"_wstart": T0, "c": 2, "v": 10},
    }
    assert opened.keys() == closed.keys() - {"windowEnd", "result"}
    assert len({event["eventId"] for event in ear.events()}) == 5
    [example] = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "connections.md").read_text("utf-8"), flags=re.DOTALL)
    assert json.loads(example)["streams"][0]["events"][0].keys() == closed.keys()
    url, identity, message = ear.messages[0]
    assert (url, message["messageId"], message["streams"][0]["streamName"]) == ("ws://a", identity, "s")
    assert message.keys() == {"messageId", "timestamp", "streams"}


@pytest.mark.parametrize(("wanted", "expected"), [
    ("WINDOW_OPEN", {"OPEN", "INVALIDATION"}), ("WINDOW_CLOSE", {"CLOSE", "INVALIDATION"}),
])
def test_only_what_was_asked_for(make: Make, ear: Ear, wanted: str, expected: set[str]) -> None:
    """Without WINDOW_OPEN nobody hears of windows that open, without WINDOW_CLOSE of results; of void ones all do."""
    kit = hourly(make, f"notify ('ws://a') on ('{wanted}')")
    put(kit, (0, 0, 1))
    put(kit, (0, 1, 1))
    kit.delete([0], T0, T0 + 1)
    kit.run()
    assert {kind for kind, _, _ in ear.heard()} == expected


def test_late_changes_come_again(make: Make, ear: Ear) -> None:
    """A row that changes a closed window has it told of once more: the same window, another event."""
    kit = make("create stream s ignore expired 0 into o as select _wstart, count(*) c from meters interval(1m, 40s) "
               + BOTH)
    put(kit, (0, 0, 1))
    put(kit, (0, 1, 1))
    put(kit, (0, 0.5, 1))
    first, second = (event for event in ear.events() if event["eventType"] == "WINDOW_CLOSE")
    assert (first["result"]["c"], second["result"]["c"]) == (1, 2)
    assert first["windowId"] == second["windowId"]
    assert first["eventId"] != second["eventId"]


ROW = st.tuples(st.integers(0, 3), st.integers(0, 60_000), st.integers(-2, 2), st.sampled_from((-1.0, 1.0)),
                st.just(""))
STEP = st.one_of(
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=8)),
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=8)),
    st.tuples(st.just("delete"), st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=2),
                                           st.integers(0, 60_000), st.integers(0, 30_000))),
    st.tuples(st.just("run"), st.none()),
    st.tuples(st.just("checkpoint"), st.booleans()),
    st.tuples(st.just("kill"), st.none()),
)


@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=times(2, 60), phases=(Phase.explicit, Phase.generate),
          suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEP, min_size=1, max_size=12), vnodes=st.integers(1, 3), memory=st.sampled_from([0, 1 << 27]),
       watermark=st.integers(0, 20))
def test_events_tell_what_the_result_table_holds(
    tmp_path_factory: pytest.TempPathFactory, window: str, steps: list[Any], vnodes: int, memory: int, watermark: int
) -> None:
    """Who keeps the last event of each window has the result table, whatever is late, deleted or killed; and each
    window that opened has closed or is void once all are over, but for those whose end never came.
    """
    ear = Ear()
    own = "partition by tbname" if window in ("state", "event", "count") else ""
    kit = StreamKit(
        tmp_path_factory.mktemp("stream"),
        f"create stream s watermark {watermark + 1}s ignore expired {window == 'count':d} ignore update 0 into o as "
        f"select _wstart, _wend, count(*) c, sum(voltage) v from meters {own} {WINDOWS[window]} {BOTH}",
        vnodes=vnodes, open_url=ear.open,
        settings=unhurried(state_memory_bytes=memory, block_rows_max=3))
    try:
        play(kit, steps)
        kit.run()
        over = [(table, FAR + table, 9, 1.0, "") for table in range(4)]
        kit.insert(over)
        kit.run()
        kit.pass_time(10)  # vnodes without tables are idle
        last = {(event["tableName"], event["windowStart"]): event for event in ear.events()}
        told = {key: event["result"] for key, event in last.items() if event["eventType"] == "WINDOW_CLOSE"}
        kept = {(row["_child"], millis(row["_wstart"])): row for row in kit.rows()}
        assert told.keys() == kept.keys()
        for key, row in kept.items():
            assert (told[key]["c"], told[key]["v"]) == (row["c"], row["v"])
            assert last[key]["windowEnd"] == millis(row["_wend"])
        still_open = {start for (_, start), event in last.items() if event["eventType"] == "WINDOW_OPEN"}
        if window not in ("event", "count"):
            assert all(start + 10_000 > FAR for start in still_open)
    finally:
        kit.close()


@pytest.mark.parametrize(("fill_history", "history", "expected"), [
    (1, 0, [("CLOSE", -1), ("OPEN", 9), ("CLOSE", 9), ("OPEN", 10)]),
    (1, 1, [("OPEN", -6), ("CLOSE", -6), ("OPEN", -1), ("CLOSE", -1), ("OPEN", 9), ("CLOSE", 9), ("OPEN", 10)]),
    (0, 0, [("OPEN", -1), ("CLOSE", -1), ("OPEN", 9), ("CLOSE", 9), ("OPEN", 10)]),
])
def test_history(make: Make, ear: Ear, fill_history: int, history: int, expected: list[tuple[str, int]]) -> None:
    """Of what windows did before the stream was created nobody is told, unless NOTIFY_HISTORY is 1. A window that was
    open then is told of when it closes."""
    kit = make(f"create stream s fill_history {fill_history} into o as select _wstart, count(*) c from d0 "
               f"interval(1m, 10s) {BOTH} notify_history {history}",
               before=lambda kit: kit.insert([(0, T0 - 5 * MINUTE, 1, 0.0, "")]))
    kit.run()
    for minute in (0.1, 10, 11):
        put(kit, (0, minute, 1))
    assert sorted({(minute, kind) for kind, _, minute in ear.heard()}) == sorted({(m, k) for k, m in expected})


# -- that it arrives ------------------------------------------------------------------------------------------------

TWO = "notify ('ws://a', 'ws://b') on ('WINDOW_CLOSE')"


def sink(kit: StreamKit) -> TaskStatus:
    return next(task.status() for task in kit.tasks if task.id.operator == "sink")


def notified(kit: StreamKit) -> tuple[int, int, int]:
    """Returns how many events were sent, failed and wait."""
    status = sink(kit)
    return status.notified.sent, status.notified.failed, status.notified.waiting


def test_pause_waits_for_who_cannot_be_reached(make: Make, ear: Ear) -> None:
    """The stream stands still until the address is back; then all events come, in order, and the other hears no more
    than once of each."""
    ear.deaf = {"ws://b"}
    kit = hourly(make, TWO)
    for minute in range(6):
        put(kit, (0, minute, 1))
    status = sink(kit)
    assert (status.state, "ws://b" in status.reason, status.notified.error) == (
        "RETRYING", True, "connection of NOTIFY: unreachable: ws://b")
    assert len(ear.heard("ws://a")) == 2  # as many writes may be under way
    assert notified(kit) == (2, 0, 2)
    kit.pass_time(1)
    assert not ear.heard("ws://b")
    ear.deaf = set()
    kit.pass_time(60)
    assert [minute for _, _, minute in ear.heard("ws://b")] == [0, 1, 2, 3, 4]
    assert ear.heard("ws://a") == ear.heard("ws://b")
    assert notified(kit) == (10, 0, 0)
    assert sink(kit).state == "IDLE"


def test_drop_goes_on_without(make: Make, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and checkpoints don't wait; what can't be sent for some seconds is dropped and counted, with the reason;
    and so is at once what would be too much to keep."""
    monkeypatch.setattr(window_notifier, "WAITING_MAX", 3)
    ear.deaf = {"ws://b"}
    kit = hourly(make, TWO + " on_failure drop")
    for minute in range(5):
        put(kit, (0, minute, 1))
    kit.checkpoint()
    assert len(kit.rows()) == 4
    assert notified(kit) == (4, 1, 3)
    for _ in range(40):
        kit.pass_time(15)
    assert notified(kit) == (4, 4, 0)
    assert "unreachable: ws://b" in sink(kit).notified.error
    ear.deaf = set()
    put(kit, (0, 6, 1))
    kit.pass_time(60)
    assert [minute for _, _, minute in ear.heard("ws://b")] == [4]
    assert notified(kit) == (6, 4, 0)


def test_what_waits_has_a_bound_of_bytes(make: Make, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result may be large: few of these are kept, but one always is."""
    monkeypatch.setattr(window_notifier, "WAITING_BYTES_MAX", 100)
    ear.deaf = {"ws://b"}
    kit = hourly(make, TWO + " on_failure drop")
    for minute in range(4):
        put(kit, (0, minute, 1))
    assert len(kit.rows()) == 3
    assert notified(kit) == (3, 2, 1)
    ear.deaf = set()
    kit.pass_time(60)
    put(kit, (0, 5, 1))
    kit.pass_time(60)
    assert notified(kit)[2] == 0
    assert ear.heard("ws://b")[0][2] == 0


def test_a_restart_tells_what_no_checkpoint_covers(make: Make, ear: Ear) -> None:
    """What was told before a checkpoint isn't told again; what came after it is, with the same ids."""
    kit = hourly(make, BOTH)
    put(kit, (0, 0, 1))
    put(kit, (0, 1, 1))
    kit.checkpoint()
    put(kit, (0, 2, 1))
    before = ear.events()
    kit.kill()
    kit.run()
    again = ear.events()[len(before):]
    assert [(event["eventType"], event["eventId"]) for event in again] == [
        (event["eventType"], event["eventId"]) for event in before[3:]]
    assert len(again) == 2


def test_no_checkpoint_while_events_wait(make: Make, ear: Ear) -> None:
    """With PAUSE a checkpoint is complete only when everything before it was told."""
    ear.deaf = {"ws://a"}
    kit = hourly(make)
    put(kit, (0, 0, 1))
    put(kit, (0, 1, 1))
    with pytest.raises(AssertionError):
        kit.checkpoint()
    ear.deaf = set()
    kit.pass_time(60)
    assert {ack.task.operator for ack in kit.acknowledged} == {"source", "agg", "sink"}


@given(st.lists(st.text(max_size=30), max_size=20), st.integers(1, 40))
def test_messages_carry_all_events_in_order(results: list[str], size: int) -> None:
    """However long events are, they come whole, in order, in messages whose ids depend on them only."""
    texts = [json.dumps({"eventId": str(n), "result": result}, ensure_ascii=False) for n, result in enumerate(results)]
    with patch.object(window_events, "MESSAGE_BYTES", size):
        found = list(window_events.messages('a "name"', texts, 5))
        again = window_events.messages("s", texts, 6)
        assert [identity for identity, _ in again] == [identity for identity, _ in found]
    messages = [json.loads(text) for _, text in found]
    assert [event["result"] for message in messages for event in message["streams"][0]["events"]] == results
    assert {message["streams"][0]["streamName"] for message in messages} <= {'a "name"'}
    assert len({identity for identity, _ in found}) == len(found)


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "query", "clause", "message"), [
    ("", "select ts, voltage from d0", BOTH, "has none"),
    ("trigger at_once", "select _wstart, count(*) from d0 interval(1m)", BOTH, "TRIGGER AT_ONCE"),
    ("trigger max_delay 5s", "select _wstart, count(*) from d0 interval(1m)", BOTH, "TRIGGER MAX_DELAY"),
    ("trigger force_window_close", "select _wstart, count(*) from d0 interval(1m)", BOTH, "FORCE_WINDOW_CLOSE"),
    ("", "select _wstart, count(*) from d0 session(ts, 5s)", BOTH, "needs _wend"),
    ("", "select _wstart, count(*) from d0 interval(1m)", "notify ('ftp://a') on ('WINDOW_OPEN')", "takes URLs"),
    ("", "select _wstart, count(*) from d0 interval(1m)", "notify ('ws://a:b') on ('WINDOW_OPEN')", "takes URLs"),
    ("", "select _wstart, count(*) from d0 interval(1m)", "notify ('ws://u:p@a') on ('WINDOW_OPEN')", "password"),
    ("", "select _wstart, count(*) from d0 interval(1m)", "notify ('ws://a','ws://a') on ('WINDOW_OPEN')", "different"),
])
def test_what_cannot_be_told_is_refused(make: Make, options: str, query: str, clause: str, message: str) -> None:
    """Streams without windows, triggers that don't say when one closes, and URLs that lead nowhere."""
    with pytest.raises((InvalidStreamError, NotSupportedError), match=message):
        make(f"create stream s {options} into o as {query} {clause}")


@pytest.mark.parametrize(("clause", "message"), [
    ("notify () on ('WINDOW_OPEN')", "a URL is expected"), ("notify ('ws://a')", "ON is expected"),
    ("notify ('ws://a') on ('WINDOW_SHUT')", "WINDOW_CLOSE"), ("notify ('ws://a') on ()", "an event is expected"),
    (f"{BOTH} notify_history 2", "between 0 and 1"), (f"{BOTH} on_failure fail", "DROP or PAUSE"),
    (f"{BOTH} on_failure drop on_failure drop", "given twice"), (f"{BOTH} notify", "end of the statement"),
])
def test_mistakes_in_the_clause(clause: str, message: str) -> None:
    """Each has its place and what is expected there."""
    with pytest.raises(SqlSyntaxError, match=message) as caught:
        parse_one(f"create stream s into o as select _wstart, count(*) from t interval(1m) {clause}")
    assert caught.value.position is not None


# -- real servers ---------------------------------------------------------------------------------------------------


class Web:
    """A server that keeps what is posted to it; it answers 503 first, `failures` times."""

    def __init__(self, failures: int = 0) -> None:
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.failures = failures
        web = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                web.failures -= 1
                if web.failures < 0:  # before the answer: the next message may come, by another thread, right behind it
                    web.posts.append((self.path, body))
                self.send_response(503 if web.failures >= 0 else 204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def websocket_server(heard: list[dict[str, Any]]) -> Iterator[Server]:
    """A WebSocket server that keeps what it hears."""
    def listen(connection: ServerConnection) -> None:
        if connection.request is not None and connection.request.path == "/closed":
            connection.close()
            return
        for text in connection:
            heard.append(json.loads(text))

    with serve(listen, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_over_http_and_websocket(tmp_path: Path) -> None:
    """An engine tells a web server and a WebSocket server of the same windows; SHOW STREAMS counts what was sent."""
    web, heard = Web(failures=2), []
    with websocket_server(heard) as server:
        port = server.socket.getsockname()[1]
        engine = Threaded(tmp_path / "data")
        try:
            engine.run(
                "CREATE DATABASE d VGROUPS 2", "USE d", "CREATE STABLE meters (ts TIMESTAMP, v INT) TAGS (g INT)",
                "CREATE TABLE d0 USING meters TAGS (0)",
                "CREATE STREAM s INTO o SUBTABLE(tbname) AS SELECT _wstart, sum(v) v FROM meters PARTITION BY tbname "
                f"INTERVAL(1m) NOTIFY ('{web.url}/hook?key=1', 'ws://127.0.0.1:{port}/hall') "
                "ON ('WINDOW_OPEN', 'WINDOW_CLOSE')",
                f"INSERT INTO d0 VALUES ({T0 + 40_000 - MINUTE}, 1)")
            engine.until(lambda: len(heard) == 1)
            engine.run(f"INSERT INTO d0 VALUES ({T0 + 40_000}, 2)")
            engine.until(lambda: engine.stream("s", "notify_sent", "notify_failed", "notify_waiting") == (6, 0, 0))
            assert {path for path, _ in web.posts} == {"/hook?key=1"}
            told = [event for message in heard for event in message["streams"][0]["events"]]
            posted = [event for _, message in web.posts for event in message["streams"][0]["events"]]
            assert posted == told
            assert [event["eventType"] for event in told] == ["WINDOW_OPEN", "WINDOW_OPEN", "WINDOW_CLOSE"]
            assert told[-1]["result"]["v"] == 1
            [(error,)] = engine.run("SELECT notify_error FROM information_schema.ins_stream_tasks WHERE level = 'sink' "
                                    "AND notify_error IS NOT NULL")
            assert "503" in error
            assert "key=1" not in error
            [plan] = [line for (line,) in engine.run("EXPLAIN " + engine.stream("s", "sql")[0].replace(
                "STREAM s INTO o", "STREAM s2 INTO o2")) if line.startswith("Each sink task tells")]
            assert plan.endswith("of WINDOW_OPEN, WINDOW_CLOSE, at least once, and waits for that")
        finally:
            engine.engine.close()
            web.close()


@contextmanager
def rude_server(manner: str) -> Iterator[int]:
    """A port where nobody answers as he should: who hangs says nothing, who closes hangs up at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept: list[socket.socket] = []

        def serve_rudely() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                if manner == "hangs":
                    kept.append(connection)
                    continue
                with connection:
                    if manner == "answers 500":
                        connection.recv(65_536)
                        connection.sendall(b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=serve_rudely, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in kept:
                connection.close()


@pytest.mark.parametrize("manner", ["hangs", "answers 500", "closes"])
def test_who_does_not_listen_holds_nobody_up(tmp_path: Path, manner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, other addresses and other streams go on; SQL says what wasn't told, and the stream can be dropped."""
    monkeypatch.setattr(window_notifier, "_TIMEOUT", "1s")
    monkeypatch.setattr(window_notifier, "_GIVE_UP_AFTER_S", 0.0)
    web = Web(failures=0)
    with rude_server(manner) as port:
        engine = Threaded(tmp_path / "data")
        try:
            engine.run("CREATE DATABASE d VGROUPS 1 KEEP 36500", "USE d", "CREATE TABLE m (ts TIMESTAMP, v INT)")
            told = f"NOTIFY('http://127.0.0.1:{port}/', '{web.url}/') ON (WINDOW_CLOSE)"
            for name, notify in (("s", told), ("t", "")):
                engine.run(f"CREATE STREAM {name} INTERVAL(1s) SLIDING(1s) FROM m {notify} INTO o{name} AS "
                           "SELECT _twstart, count(*) n FROM %%trows")
            for second in range(5):
                engine.run(f"INSERT INTO m VALUES ({T0 + second * 1000}, 1)")
                for name in "st":
                    engine.until(lambda: engine.run(f"SELECT count(*) FROM o{name}") == [(second,)])  # noqa: B023
            engine.until(lambda: engine.stream("s", "notify_sent")[0] >= 4)
            engine.until(lambda: engine.stream("s", "notify_failed")[0] >= 1)
            engine.until(lambda: sum(engine.stream("s", "notify_sent", "notify_failed", "notify_waiting")) == 8)
            assert f"127.0.0.1:{port}" in engine.stream("s", "notify_error")[0]
            engine.run("DROP STREAM s", f"INSERT INTO m VALUES ({T0 + 5000}, 1)")
            engine.until(lambda: engine.run("SELECT count(*) FROM ot") == [(5,)])
        finally:
            engine.engine.close()
            web.close()
    assert sum(len(message["streams"][0]["events"]) for _, message in web.posts) == 4


def talking(url: str) -> OpenedConnection:
    return OpenedConnection(url.partition("?")[0], "webhook", {"url": url, "timeout": "1s"}, 1)


def test_websockets_that_fail(tmp_path: Path) -> None:
    """Nobody there, somebody who speaks no WebSocket, and one who hangs up: each is unreachable, and says so."""
    with pytest.raises(ConnectionFailedError, match=r"unreachable: ws://127\.0\.0\.1"):
        open_sender(talking(f"ws://127.0.0.1:{free_port()}/a?key=1"))
    web = Web()
    try:
        with pytest.raises(ConnectionFailedError, match="unreachable"):
            open_sender(talking(web.url.replace("http", "ws")))
    finally:
        web.close()
    heard: list[dict[str, Any]] = []
    with websocket_server(heard) as server:
        port = server.socket.getsockname()[1]
        sender = open_sender(talking(f"ws://127.0.0.1:{port}/closed"))

        def talk() -> None:
            """A ping that comes before the other side has hung up may still be answered."""
            for number in range(1000):
                sender.send(str(number), "{}")

        with pytest.raises(ConnectionFailedError, match="unreachable"):
            talk()
        sender.close()
    assert heard == []
