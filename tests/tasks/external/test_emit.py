"""Streams INTO CONNECTION: whatever fails in between, targets have each result as often as is promised."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from kits.basics.external_servers import Postgres
from kits.streams.emit_kit import LONG_ENOUGH_S, Faults, Faulty, MemorySender, Topic, opened, play, steps
from kits.streams.stream_kit import StreamKit, unhurried

from penstock.common.connection import OpenedConnection
from penstock.common.errors import ContentRefusedError, InvalidStreamError, LoginRefusedError, NotFoundError
from penstock.planner.streams.external_sink import filled_in
from penstock.tasks.external.connectors.files import Folder
from penstock.tasks.external.connectors.kafka import Sender
from penstock.tasks.external.connectors.mqtt import Publisher
from penstock.tasks.external.connectors.webhook import Poster
from penstock.tasks.external.emit.async_sink_writer import AsyncSinkWriter, Delivery, ExternalTarget
from penstock.tasks.external.emit.files_target import FilesTarget
from penstock.tasks.external.emit.kafka_target import KafkaTarget, KafkaTransactionTarget
from penstock.tasks.external.emit.mqtt_target import MqttTarget
from penstock.tasks.external.emit.postgres_target_table import FoundColumn, PostgresTable
from penstock.tasks.external.emit.result_events import ExternalRows, time_text
from penstock.tasks.external.emit.webhook_target import WebhookTarget
from penstock.tasks.protocol.messages import UseConnection

QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None,
                 max_examples=times(3, 70))
CLOSED = ("CREATE STREAM s {} INTO {} AS SELECT _wstart, tbname, count(*) n, sum(voltage) v FROM meters "
          "PARTITION BY tbname INTERVAL(1m)")
CHANGING = ("CREATE STREAM s TRIGGER AT_ONCE IGNORE EXPIRED 0 INTO {} AS SELECT _wstart, site, count(*) n, "
            "sum(voltage) v, last(note) note FROM meters PARTITION BY site, voltage % 1 INTERVAL(1m)")
Kits = Callable[..., StreamKit]
Make = Callable[..., tuple[StreamKit, "Refusing"]]


@pytest.fixture
def kits(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    """Makes kits of streams without Spark; who makes one closes it."""
    return lambda sql, **options: StreamKit(tmp_path_factory.mktemp("stream"), sql, **options)


@pytest.fixture
def refusing(kits: Kits) -> Iterator[Callable[..., tuple[StreamKit, Refusing]]]:
    """Makes streams into targets that refuse; takes options of CREATE STREAM."""
    made: list[StreamKit] = []

    def make(options: str = "") -> tuple[StreamKit, Refusing]:
        target = Refusing()
        made.append(kits(CLOSED.format(f"TRIGGER AT_ONCE {options}", "CONNECTION webhook"),
                         connection=opened("webhook"), open_target=target.open,
                         settings=unhurried(retry_time_s=10.0)))
        return made[-1], target

    yield make
    for kit in made:
        kit.close()


def in_a_table(kits: Kits, sql: str, drawn: list[Any], *, in_order: bool) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Returns what the stream has in a table after the same history without faults: by group and time."""
    with closing(kits(sql)) as kit:
        play(kit, Faults(), [step for step in drawn if step[0] in ("rows", "delete")], in_order=in_order)
    return {(row[kit.plan.sink.columns[1].name], row["_wstart"].timestamp() * 1000): tuple(row.values())[2:-1]
            for row in kit.rows()}


# --- exactly once: each window is one event --------------------------------------------------------------------------


def events_by_window(events: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    found: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for event in events:
        assert event["_op"] == "upsert"
        found.setdefault((event["tbname"], event["_wstart"]), []).append((event["n"], event["v"]))
    return found


@QUICK
@given(drawn=steps(changes=False))
def test_kafka_has_each_result_exactly_once(kits: Kits, drawn: list[Any]) -> None:
    """In transactions, whose mark tells what was committed when the answer was lost or the task died."""
    topic, faults = Topic(), Faults()

    def open_target(connection: OpenedConnection, known: bool) -> ExternalTarget:
        sender = cast(Sender, MemorySender(topic, "s-0"))
        return Faulty(KafkaTransactionTarget(sender, external, ExternalRows(kit.plan.sink, "s")), faults)

    kit = kits(CLOSED.format("", "CONNECTION kafka (TOPIC 't')"), connection=opened("kafka"), open_target=open_target)
    external = kit.plan.sink.external
    assert external is not None
    with closing(kit):
        play(kit, faults, drawn, in_order=True)
    want = in_a_table(kits, CLOSED.format("", "o"), drawn, in_order=True)
    got = events_by_window(topic.values())
    assert got == {(table, time_text(int(time), 1000)): [row] for (table, time), row in want.items()}


@QUICK
@given(drawn=steps(changes=False))
def test_files_have_each_result_exactly_once(
    kits: Kits, tmp_path_factory: pytest.TempPathFactory, drawn: list[Any]
) -> None:
    """A part that comes again replaces its own file; nothing else is ever seen in the folder."""
    root, faults = tmp_path_factory.mktemp("files"), Faults()

    def open_target(connection: OpenedConnection, known: bool) -> ExternalTarget:
        folder = Folder(connection, "a/b")
        return Faulty(FilesTarget(folder, external, ExternalRows(kit.plan.sink, "s"), "s", 0), faults)

    kit = kits(CLOSED.format("", "CONNECTION files (PATH 'a/b')"), open_target=open_target,
               connection=opened("files", url=f"file://{root}"))
    external = kit.plan.sink.external
    assert external is not None
    with closing(kit):
        play(kit, faults, drawn, in_order=True)
    want = in_a_table(kits, CLOSED.format("", "o"), drawn, in_order=True)
    rows = [row for path in (root / "a" / "b").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    got = events_by_window([{**row, "_wstart": row["_wstart"].timestamp() * 1000} for row in rows])
    assert got == {key: [row] for key, row in want.items()}
    assert not list((root / "a" / "b").glob(".*"))


def test_a_replay_with_other_results_is_not_taken_for_what_a_topic_has(kits: Kits) -> None:
    """Without a word it would be lost: its mark is there."""
    topic = Topic()

    def open_target(connection: OpenedConnection, known: bool) -> ExternalTarget:
        assert kit.plan.sink.external is not None
        sender = cast(Sender, MemorySender(topic, "s-0"))
        return KafkaTransactionTarget(sender, kit.plan.sink.external, ExternalRows(kit.plan.sink, "s"))

    for value in (1, 1, 2):
        kit = kits(CLOSED.format("TRIGGER AT_ONCE", "CONNECTION kafka (TOPIC 't')"), connection=opened("kafka"),
                   open_target=open_target)
        with closing(kit):
            kit.insert([(0, 1_000, value, 1.0, "n")])
            kit.run()
            kit.checkpoint()
            kit.kill()
            kit.pass_time(LONG_ENOUGH_S)
            (sink,) = [task.status() for task in kit.tasks if task.id.operator == "sink"]
        assert [event["v"] for event in topic.values()] == [1]
        if value == 1:
            assert sink.state == "IDLE"
        else:
            assert sink.state == "RETRYING"
            assert "topic t has other results of checkpoint 1, part 0" in sink.reason


def test_a_topic_tells_its_last_deliveries_from_others(kits: Kits) -> None:
    """Their digests are beside the mark, where there isn't room for all that ever were."""
    sql, topic = CLOSED.format("", "CONNECTION kafka (TOPIC 't')"), Topic()
    with closing(kits(sql, connection=opened("kafka"))) as kit:
        sink = kit.plan.sink

    def target() -> KafkaTransactionTarget:
        assert sink.external is not None
        return KafkaTransactionTarget(cast(Sender, MemorySender(topic, "s-0")), sink.external, ExternalRows(sink, "s"))

    none = pa.RecordBatch.from_pylist([], schema=ExternalRows(sink, "s").schema)
    first = target()
    for number in range(70):
        first.deliver(Delivery(1 << 20 | number, none, f"{number:016x}"))
    assert len(topic.marks["s-0"][1]) < 4096
    later = target()
    later.deliver(Delivery(1 << 20 | 69, none, f"{69:016x}"))
    for number in (6, 69):
        with pytest.raises(ContentRefusedError, match=f"other results of checkpoint 1, part {number}"):
            later.deliver(Delivery(1 << 20 | number, none, "other"))
    later.deliver(Delivery(1 << 20 | 5, none, "too old to be known"))
    topic.marks["s-0"] = 1 << 30, "no digests"
    target().deliver(Delivery(1 << 20 | 69, none, "not known either"))


def test_a_replay_with_other_results_replaces_no_file(kits: Kits, tmp_path: Path) -> None:
    """A stream that begins anew under the same name, as after a data directory was set back, says which file it is."""
    where = {"connection": opened("files", url=tmp_path.as_uri())}
    sql = CLOSED.format("TRIGGER AT_ONCE", "CONNECTION files (PATH 'a', FORMAT json)")
    with closing(kits(sql, **where)) as first:
        first.insert([(0, 1_000, 1, 1.0, "n")])
        first.run()
        first.checkpoint()
    (path,) = tmp_path.glob("a/*.jsonl")
    committed = path.read_bytes()
    with closing(kits(sql, **where)) as again:
        again.insert([(0, 1_000, 2, 1.0, "n")])
        again.run()
        again.checkpoint()
        again.kill()
        for _ in range(2):
            again.pass_time(LONG_ENOUGH_S)
            (sink,) = [task.status() for task in again.tasks if task.id.operator == "sink"]
            assert sink.state == "RETRYING"
            assert f"{path.name} is there, with other results" in sink.reason
            assert path.read_bytes() == committed
        path.rename(tmp_path / "aside")
        again.pass_time(LONG_ENOUGH_S)
        assert [json.loads(line)["v"] for line in path.read_text().splitlines()] == [2]


# --- at least once ---------------------------------------------------------------------------------------------------


class Heard:
    """Stands for a Publisher and a Sender: keeps what it is sent."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def publish(self, messages: Any, qos: int) -> list[tuple[int, str]]:
        for topic, payload in messages:
            event = json.loads(payload)
            assert topic == f"avg/{event['tbname']}"
            self.events.append(event)
        return []

    def send(self, messages: Any) -> list[tuple[int, str]]:
        for key, value, headers in messages:
            event = json.loads(value)
            assert json.loads(key) == [event["tbname"]]
            assert dict(headers) == {"penstock-id": event["_id"], "penstock-op": event["_op"]}
            self.events.append(event)
        return []

    def close(self) -> None:
        """Nothing is open."""


class HeardPoster(Heard):
    """Stands for a Poster."""

    def send(self, identity: str, text: str) -> None:  # type: ignore[override]
        posted = json.loads(text)
        assert posted["stream"] == "s"
        self.events += posted["rows"]


@pytest.mark.parametrize("kind", ["mqtt", "webhook", "kafka"])
@settings(QUICK, max_examples=3)
@given(drawn=steps(changes=False))
def test_messages_come_at_least_once_and_are_known_again(kits: Kits, kind: Any, drawn: list[Any]) -> None:
    """Nothing is lost, and what comes again has the id that it had."""
    heard, faults = HeardPoster() if kind == "webhook" else Heard(), Faults()
    where = {"mqtt": "(TOPIC 'avg/${tbname}')", "webhook": "", "kafka": "(TOPIC 't')"}[kind]

    def open_target(connection: OpenedConnection, known: bool) -> ExternalTarget:
        rows = ExternalRows(kit.plan.sink, "s")
        targets: dict[str, ExternalTarget] = {
            "mqtt": MqttTarget(cast(Publisher, heard), external, rows),
            "webhook": WebhookTarget(cast(Poster, heard), rows, "s"),
            "kafka": KafkaTarget(cast(Sender, heard), external, rows)}
        return Faulty(targets[kind], faults)

    kit = kits(CLOSED.format("GUARANTEE AT_LEAST_ONCE", f"CONNECTION {kind} {where}"), connection=opened(kind),
               open_target=open_target)
    external = kit.plan.sink.external
    assert external is not None
    with closing(kit):
        play(kit, faults, drawn, in_order=True)
    want = in_a_table(kits, CLOSED.format("", "o"), drawn, in_order=True)
    got = events_by_window(heard.events)
    assert {key: set(rows) for key, rows in got.items()} == {
        (table, time_text(int(time), 1000)): {row} for (table, time), row in want.items()}
    contents: dict[str, str] = {}
    for event in heard.events:
        assert contents.setdefault(event["_id"], json.dumps(event)) == json.dumps(event)
    assert len(contents) == len(want)


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def postgres_connection(postgres: Postgres) -> OpenedConnection:
    return opened("postgres", host="127.0.0.1", port=str(postgres.port), database=postgres.database,
                  username=postgres.username, password=postgres.password, sslmode="disable")


@settings(QUICK, max_examples=times(2, 60))
@given(drawn=steps(changes=True))
def test_postgres_has_what_a_table_would_have(kits: Kits, postgres: Postgres, drawn: list[Any]) -> None:
    """With rows that come late, twice and go, windows that cease to exist, lost answers and crashes."""
    faults = Faults()
    with postgres.connect() as server:
        server.execute("DROP TABLE IF EXISTS emitted")
        kit = kits(CHANGING.format("CONNECTION postgres (TABLE 'emitted')"), vnodes=2,
                   connection=postgres_connection(postgres), around=lambda target: Faulty(target, faults))
        with closing(kit):
            play(kit, faults, drawn, in_order=False)
        want = in_a_table(kits, CHANGING.format("o"), drawn, in_order=False)
        there = server.execute("SELECT to_regclass('emitted') IS NOT NULL").fetchone()[0]
        rows = server.execute("SELECT * FROM emitted").fetchall() if there else []
    assert {(site, start.timestamp() * 1000): tuple(rest) for site, _, start, *rest in rows} == want


def test_the_table_that_a_stream_makes_has_the_results_key(tmp_path: Path) -> None:
    """The keys and the time are unique, and NULL is a group like others."""
    sink = plan_of("CREATE STREAM s INTO CONNECTION postgres (TABLE 'a.b') AS SELECT ts, voltage, current FROM meters "
                   "PARTITION BY tbname", tmp_path).sink
    assert PostgresTable(sink).create == (
        'CREATE TABLE IF NOT EXISTS "a"."b" ("tbname" text, "ts" timestamp with time zone, "voltage" integer, '
        '"current" double precision, UNIQUE NULLS NOT DISTINCT ("tbname", "ts"))')


def test_what_is_wrong_with_a_table_is_said_all_at_once(tmp_path: Path) -> None:
    """Columns, types, what else must be filled, the key; further columns and wider types are fine."""
    table = PostgresTable(plan_of(CHANGING.format("CONNECTION postgres (TABLE 'loads')").replace(
        ", voltage % 1", ""), tmp_path).sink)
    found = [FoundColumn("site", "character varying", required=True),
             FoundColumn("_wstart", "timestamp without time zone", required=True),
             FoundColumn("n", "integer", required=False), FoundColumn("v", "bigint", required=False),
             FoundColumn("owner", "text", required=True)]
    assert table.problems(found, [("_wstart",), ("site",)]) == [
        "column n is integer, the results are bigint", "column note text is missing",
        "column owner takes no NULL, has no default and is not among the results",
        "it has no primary key or unique index on (site, _wstart)"]
    fitting = [*found[:2], FoundColumn("n", "numeric", required=False), found[3],
               FoundColumn("note", "text", required=False)]
    assert table.problems(fitting, [("_wstart", "site")]) == []


# --- failures --------------------------------------------------------------------------------------------------------


class Refusing:
    """A target that raises `error` as long as there is one, and never takes rows whose n is `poison`."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.poison: int | None = None
        self.taken: list[dict[str, Any]] = []
        self.connections: list[int] = []

    def open(self, connection: OpenedConnection, known: bool) -> ExternalTarget:
        self.connections.append(connection.version)
        return self

    def deliver(self, delivery: Delivery) -> None:
        from penstock.common.errors import RowRefusedError

        if self.error is not None:
            raise self.error
        rows = delivery.rows.to_pylist()
        refused = next((n for n, row in enumerate(rows) if row["n"] == self.poison), None)
        if refused is not None:
            raise RowRefusedError("too bad", row=refused)
        self.taken += rows

    def close(self) -> None:
        """Nothing is open."""


def test_a_target_that_is_away_is_tried_again_and_the_state_says_why(refusing: Make) -> None:
    """With growing pauses, or at once when the connection was altered."""
    kit, target = refusing()
    kit.insert([(0, 0, 1, 1.0, "a")])
    target.error = LoginRefusedError("login refused by db:1: wrong password")
    kit.run()
    (sink,) = [task for task in kit.tasks if task.id.operator == "sink"]
    first = sink.status()
    assert first.state == "RETRYING"
    assert first.reason.startswith(
        "connection webhook: login refused by db:1: wrong password; tried once since 2020-09-13T12:26:40")
    tries = len(target.connections)
    kit.pass_time(0.4)
    assert len(target.connections) == tries  # it isn't time yet
    kit.pass_time(0.2)
    assert len(target.connections) == tries + 1
    assert "tried 2 times" in sink.status().reason
    assert sink.status().connection.outage_since_ms == first.connection.outage_since_ms
    target.error = None
    sink.post(UseConnection(OpenedConnection("webhook", "webhook", {"timeout": "5s"}, 2)))
    kit.run()  # at once, and by the new version
    assert target.connections[-1] == 2
    assert [row["n"] for row in target.taken] == [1]
    assert sink.status().state == "IDLE"
    assert sink.status().connection.outage_since_ms is None


def test_a_sink_that_cannot_deliver_stops_the_reading_of_the_log(refusing: Make) -> None:
    """Nothing is dropped and nothing grows: what isn't taken stays in bounded queues and in the log."""
    kit, target = refusing()
    target.error = ContentRefusedError("no")
    for n in range(400):
        kit.insert([(n % 4, n * 1_000, n, 1.0, "a")])
        if n % 40 == 0:
            kit.run()
    kit.run()
    assert not target.taken
    target.error = None
    kit.pass_time(LONG_ENOUGH_S)
    newest = {(row["tbname"], row["_wstart"]): row["n"] for row in target.taken}
    assert sum(newest.values()) == 400


def test_rows_that_are_refused_go_to_the_dlq_and_the_others_on(refusing: Make) -> None:
    """Single rows at once, all of a write once it was tried for long enough."""
    kit, target = refusing("ON_FAILURE DLQ p.dead")
    target.poison = 2
    for table in range(4):
        kit.insert([(table, 0, 1, 1.0, "a")])
    kit.insert([(1, 1_000, 5, 1.0, "b"), (2, 1_000, 5, 1.0, "b")])
    kit.run()
    assert sorted(row["tbname"] for row in target.taken if row["n"] == 1)
    dead = [row for write in kit.writes for row in write.rows.to_pylist()]
    assert {json.loads(row["content"])["tbname"] for row in dead} == {"d1", "d2"}
    assert {(row["reason"], row["message"], row["table_name"]) for row in dead} == {
        ("refused", "too bad", "webhook connection webhook")}
    assert {json.loads(row["content"])["n"] for row in dead} == {2}
    target.error = LoginRefusedError("away")
    kit.insert([(3, 2_000, 7, 1.0, "c")])
    kit.run()
    assert len(kit.writes) == len(dead)  # not before its time
    kit.pass_time(11)
    assert "away" in [row for write in kit.writes for row in write.rows.to_pylist()][-1]["message"]
    target.error, target.poison = None, None
    kit.insert([(3, 3_000, 7, 1.0, "c")])
    kit.pass_time(LONG_ENOUGH_S)
    assert target.taken[-1]["n"] == 3


def test_without_a_dlq_the_refused_row_is_named(refusing: Make) -> None:
    """Nothing is skipped: the whole write waits until the row is taken."""
    kit, target = refusing()
    target.poison = 1
    kit.insert([(0, 0, 1, 1.0, "a")])
    kit.run()
    (sink,) = [task for task in kit.tasks if task.id.operator == "sink"]
    assert "too bad" in sink.status().reason
    target.poison = None
    kit.pass_time(LONG_ENOUGH_S)
    assert len(target.taken) == 1


# --- plans -----------------------------------------------------------------------------------------------------------


def plan_of(sql: str, root: Path) -> Any:
    kind = sql.split("CONNECTION ")[1].split()[0]
    kit = StreamKit(root, sql, connection=opened(cast(Any, kind)))
    kit.close()
    return kit.plan


@pytest.mark.parametrize(("target", "message"), [
    ("postgres", "a postgres connection needs a table to write to"),
    ("postgres (TOPIC 'x')", "results go to a table of a postgres connection, not to a topic"),
    ("postgres (TABLE 'x', FORMAT json)", "a postgres connection takes no json"),
    ("kafka (TOPIC 'x', FORMAT parquet)", "a kafka connection takes no parquet"),
    ("webhook (FORMAT avro)", "a webhook connection takes no avro"),
    ("kafka (TOPIC 'x', QOS 1)", "QOS is for mqtt"),
    ("mqtt (TOPIC 'x/#')", "can't have wildcards"),
    ("mqtt (TOPIC 'x/${site}')", "refers to site, which is not in PARTITION BY"),
    ("files (PATH '../x')", "leads out of the connection's folder"),
    ("files (PATH ' ')", "the path is empty"),
])
def test_what_a_connection_does_not_have_is_refused(tmp_path: Path, target: str, message: str) -> None:
    """Each type has its own kind of place and its own formats."""
    with pytest.raises(InvalidStreamError, match=message.replace("$", r"\$").replace("{", r"\{")):
        plan_of(CLOSED.format("", f"CONNECTION {target}"), tmp_path)


def test_names_that_avro_cannot_have_are_told(tmp_path: Path) -> None:
    """When the stream is created."""
    with pytest.raises(InvalidStreamError, match=r"count\(\*\) can't be the name of a field of Avro"):
        plan_of("CREATE STREAM s INTO CONNECTION kafka (TOPIC 't', FORMAT avro) AS SELECT _wstart, count(*) "
                "FROM meters PARTITION BY tbname INTERVAL(1m)", tmp_path)


def test_an_unknown_connection_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    """As tables are."""
    with pytest.raises(NotFoundError, match="connection stoer does not exist"):
        StreamKit(tmp_path, CLOSED.format("", "CONNECTION stoer (TABLE 't')"), connection=opened("postgres"))


def test_keys_are_columns_under_the_names_that_the_query_gives_them(tmp_path: Path) -> None:
    """Those that are selected too are there once."""
    plan = plan_of("CREATE STREAM s INTO CONNECTION webhook AS SELECT _wstart AS t, tbname AS device, count(*) n "
                   "FROM meters PARTITION BY tbname, upper(site) AS place INTERVAL(1m)", tmp_path)
    assert [column.name for column in ExternalRows(plan.sink, "s").columns] == ["device", "place", "t", "n"]


@pytest.mark.parametrize(("items", "partition", "columns"), [
    ("m.ts, m.voltage, b.current", "m.tbname, m.site", ["tbname", "site", "ts", "voltage", "current"]),
    ("m.ts, m.site, b.current", "m.tbname, m.site", ["tbname", "site", "ts", "current"]),
    ("m.ts, m.site AS place, m.voltage", "m.tbname, m.site", ["tbname", "place", "ts", "voltage"]),
    ("m.ts, m.voltage", "m.tbname device, upper(m.site)", ["device", "upper(m.site)", "ts", "voltage"]),
    ("m.ts, b.site, m.voltage", "m.tbname, m.site", ["tbname", "m.site", "ts", "site", "voltage"]),
])
def test_keys_of_joins_are_called_as_columns_of_results_are(
    tmp_path: Path, items: str, partition: str, columns: list[str]
) -> None:
    """Without the table's alias, unless another column is called that; the other table's column is no key."""
    plan = plan_of(f"CREATE STREAM s INTO CONNECTION postgres (TABLE 't') AS SELECT {items} FROM meters m "
                   f"JOIN meters b ON m.ts = b.ts AND m.tbname = b.tbname PARTITION BY {partition}", tmp_path)
    assert [column.name for column in ExternalRows(plan.sink, "s").columns] == columns


def test_values_in_topics_make_no_levels_and_no_wildcards() -> None:
    """A device may have any name."""
    assert filled_in("a/${x}/${y}", {"x": "b/+c#", "y": None}) == "a/b__c_/null"


def test_a_courier_without_deliveries_waits_for_nothing() -> None:
    """It has no deadline, and opens no target."""
    from penstock.common.clock import ManualClock

    writer = AsyncSinkWriter(Refusing().open, opened("webhook"), ManualClock(), lambda: None)
    assert writer.next_try is None
    assert not writer.turn()
    assert writer.check() == 0
    writer.close()

