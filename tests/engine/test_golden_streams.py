"""A fixed set of streams over fixed rows, all at once on real Spark: the same answers, whatever happens on the way.

The streams and what they must give are in tests/golden/streams/*.txt, the rows in its *.sql. A comment `# batch: ...`
is a query over the source that must give the same at the end; it is checked too, so that no wrong answer is kept. With
PENSTOCK_UPDATE_GOLDEN=1 the straight run rewrites the answers, once they equal those of the batch.
"""

from __future__ import annotations

import functools
import json
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from conftest import TEST_CONFIG, profile, times
from kits.basics.golden_runner import UPDATE, Block, read_blocks
from kits.basics.places import TESTS
from kits.basics.waiting import wait_until
from kits.engines.engine_process import ENDED, EngineProcess
from kits.engines.statement_child import texts

import penstock
from penstock.shell.terminal.script import SqlText, split_all
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import CreateStream

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GOLDEN = TESTS / "golden" / "streams"
SCRIPTS = sorted(GOLDEN.glob("*.txt"))
CREATED_LATER = "history"
# Some 60 streams that each say 20 times a second how they are would keep two cores from their work.
CONFIG = TEST_CONFIG | {"timezone": "Europe/Berlin", "streamsPerWorker": 18, "restartDelayMax": "1s",
                        "heartbeatInterval": "250ms"}
KILLS = times(2, 4)
#: With how many vgroups the streams run straight; with two they run while they are killed, by day only so.
VGROUPS = [3, 2]
#: One stream of each kind, which run by day; by night all do. Their number says what the test costs.
BY_DAY = frozenset((
    "fill_prev", "fired", "fired_queries", "functions", "history_sites",
    "hours", "halves", "days", "slides", "by_state", "percentiles",
    "level_two", "sessions", "states", "events", "counts",
    "mirror", "keyed", "into_old", "defaults", "writes", "delayed", "corrected", "continuous", "forgetful",
))
PATIENCE_S = 900.0  # many streams start and take checkpoints, beside whatever else the machine does
_GROUP_NUMBER = re.compile(r"_\d+$")
Rows = list[list[str]]


class Client(Protocol):
    """Whoever executes statements on an engine."""

    def run(self, sql: str) -> Rows: ...


@dataclass(frozen=True)
class Golden:
    """A stream, what its result table must hold at the end (a line of heads, then rows), and where that is written."""

    script: Path
    block: Block
    name: str
    target: str
    batch: str | None

    def found(self, client: Client) -> list[str]:
        """Returns what the result table holds, as a golden script has it.

        The group's id is no part of it, neither as a tag nor at the end of a name that SUBTABLE gave: for groups by
        table it is a number of the catalog, and result tables get theirs in the order in which they appear.
        """
        heads = [row[0] for row in client.run(f"DESCRIBE {self.target}") if row[0] != "group_id"]
        columns = ", ".join(["tbname", *heads])
        rows = client.run(f"SELECT {columns} FROM {self.target} ORDER BY 1, 2, 3")
        return [columns, *(" | ".join([_GROUP_NUMBER.sub("", row[0]), *row[1:]]) for row in rows)]

    def unlike_batch(self, client: Client) -> list[str]:
        """Returns the rows that only the result table or only the batch query has."""
        if self.batch is None:
            return []
        found = sorted(row.split(" | ", 1)[1] for row in self.found(client)[1:])
        wanted = sorted(" | ".join(row) for row in client.run(self.batch))
        return [] if found == wanted else [*(f"stream {row}" for row in found if row not in wanted),
                                           *(f"batch {row}" for row in wanted if row not in found), "counts"]


@functools.cache
def all_golden() -> list[Golden]:
    """Returns the streams of all scripts in the order in which they are created."""
    streams = []
    for script in SCRIPTS:
        for block in read_blocks(script):
            statement = parse_one(block.statement)
            assert isinstance(statement, CreateStream)
            batch = next((line.removeprefix("# batch: ") for line in block.comments if line.startswith("# batch: ")),
                         None)
            streams.append(Golden(script, block, statement.name, statement.target.name.name, batch))
    return streams


def read_golden() -> list[Golden]:
    """Returns the streams that this run plays, in the order in which they are created."""
    return all_golden() if UPDATE or profile() == "nightly" else [
        golden for golden in all_golden() if golden.name in BY_DAY]


def statements(name: str) -> list[str]:
    """Returns the statements of a SQL file."""
    pieces = split_all((GOLDEN / name).read_text("utf-8"))
    return [piece.text for piece in pieces if isinstance(piece, SqlText)]


class Attached:
    """Executes statements on an engine of this process."""

    def __init__(self, connection: Any) -> None:
        self._cursor = connection.cursor()

    def run(self, sql: str) -> Rows:
        self._cursor.execute(sql)
        return texts(self._cursor.fetch_arrow()) if self._cursor.description else []

    def attempt(self, sql: str) -> tuple[Rows, str]:
        """Returns the rows of a statement and the text of its error, of which one is empty."""
        try:
            return self.run(sql), ""
        except penstock.Error as error:
            return [], str(error)


class Killable:
    """Executes statements on an engine in a process of its own, which is killed now and then."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.process = self._start()

    def run(self, sql: str) -> Rows:
        rows, error = self.attempt(sql)
        assert not error, (sql, error)
        return rows

    def attempt(self, sql: str) -> tuple[Rows, str]:
        """Returns the rows of a statement and the text of its error, of which one is empty."""
        self.process.tell(json.dumps(sql))
        answer = json.loads(self.process.next())
        return answer.get("rows", []), answer.get("error", "")

    def run_and_kill_worker(self, sql: str, chance: random.Random) -> None:
        """Kills one of the engine's Python workers while it executes a statement."""
        victims = wait_until(self.process.workers, PATIENCE_S, "there are no Python workers")
        self.process.tell(json.dumps(sql))
        chance.choice(victims).send_signal(signal.SIGKILL)
        answer = json.loads(self.process.next())
        assert "error" not in answer, (sql, answer)

    def run_and_kill_engine(self, sql: str, chance: random.Random) -> None:
        """Kills the engine while it executes a statement, or after it, and executes it again if it gave no answer."""
        self.process.tell(json.dumps(sql))
        answered = chance.random() < 0.5 and self.process.next() != ENDED
        answered = bool(self.process.kill()) or answered
        self.process = self._start()
        self.run("USE golden")
        if not answered:
            self.run(sql)

    def _start(self) -> EngineProcess:
        config = CONFIG | {"checkpointInterval": "1s", "spark.ui.enabled": False}
        process = EngineProcess("statement_child.py", self._data, json.dumps(config))
        assert process.next() == "ready"
        return process


Run = Callable[[str], Any]


def prepare(data: Path) -> None:
    """Makes a data directory with the functions that the streams call."""
    (data / "udf").mkdir(parents=True)
    shutil.copy(GOLDEN / "functions.py", data / "udf")


def play(run: Run, write: Callable[[Sequence[str]], None], vgroups: int) -> None:
    """Creates everything and writes the rows; streams with FILL_HISTORY come when there is some history."""
    for sql in (f"CREATE DATABASE golden VGROUPS {vgroups} KEEP 36500d", "USE golden", *statements("setup.sql")):
        run(sql)
    streams = read_golden()
    for golden in streams:
        if golden.script.stem != CREATED_LATER:
            run(golden.block.statement)
    for sql in statements("before.sql"):
        run(sql)
    for golden in streams:
        if golden.script.stem == CREATED_LATER:
            run(golden.block.statement)
    write(statements("after.sql"))


def finish(client: Client) -> None:
    """Waits until the streams have caught up, and then says what needs that."""
    wait_until(functools.partial(caught_up, client), PATIENCE_S, "the streams don't catch up")
    for sql in statements("end.sql"):
        client.run(sql)


def caught_up(client: Client) -> bool:
    """Tells whether all source tasks have processed their vnode's whole log, and no task does anything."""
    ends = dict(client.run("SELECT vgroup_id, wal_version FROM information_schema.ins_vgroups"))
    tasks = client.run("SELECT level, state, node_id, processed_version FROM information_schema.ins_stream_tasks")
    return all(state == "IDLE" and (level != "source" or processed == ends[node])
               for level, state, node, processed in tasks)


def differences(client: Client) -> list[str]:
    """Returns how the result tables differ from the golden scripts, in words."""
    texts = []
    for golden in read_golden():
        found, wanted = golden.found(client), golden.block.expected.splitlines()
        if found != wanted:
            texts.append("\n".join([f"{golden.name}:", *(f"  - {row}" for row in wanted if row not in found),
                                    *(f"  + {row}" for row in found if row not in wanted)]))
    return texts


def unlike_batch(client: Client) -> list[str]:
    return [f"{golden.name}: {row}" for golden in read_golden() for row in golden.unlike_batch(client)[:6]]


def unverified(client: Client) -> list[str]:
    """Returns what VERIFY STREAM finds of which nothing is known that explains it; it mustn't refuse most streams."""
    found, refused = [], []
    for golden in read_golden():
        rows, error = client.attempt(f"VERIFY STREAM {golden.name}")
        if error:
            (found if "hasn't read" in error else refused).append(f"{golden.name}: {error}")
        found += [f"{golden.name}: {row}" for row in rows if row[0] != "verified" and row[-1] == "NULL"]
    return found if len(refused) < len(read_golden()) / 2 else [*found, *refused]


def settle(client: Client, problems: Callable[[Client], list[str]]) -> None:
    """Waits until the streams have caught up and there are no problems, and looks once more then."""
    last: list[str] = []

    def settled() -> bool:
        last[:] = ["the streams haven't caught up"] if not caught_up(client) else problems(client)
        return not last

    try:
        wait_until(settled, PATIENCE_S)
    except AssertionError:
        pytest.fail("\n".join([*last, *(str(row) for row in client.run("SHOW STREAMS") if row[1] != "RUNNING")]))
    wait_until(functools.partial(caught_up, client), PATIENCE_S)
    assert problems(client) == []


def write_scripts(client: Client) -> None:
    """Rewrites the golden scripts with what the result tables hold."""
    for script in SCRIPTS:
        blocks = [(golden.block, golden.found(client)) for golden in read_golden() if golden.script == script]
        script.write_text("\n\n".join("\n".join([*block.comments, block.statement, "---", *found])
                                      for block, found in blocks) + "\n", "utf-8")


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[], Attached]]:
    """Opens engines in this process; they are closed after the test."""
    opened: list[Any] = []

    def open_engine() -> Attached:
        prepare(tmp_path / "data")
        opened.append(penstock.connect(str(tmp_path / "data"), CONFIG))
        return Attached(opened[-1])

    yield open_engine
    for connection in opened:
        connection.close()


def test_each_script_has_a_stream_by_day() -> None:
    """So no kind of stream is left to the night."""
    assert {golden.name for golden in all_golden()} >= BY_DAY
    assert {golden.script for golden in all_golden() if golden.name in BY_DAY} == set(SCRIPTS)


@pytest.mark.skipif(profile() != "nightly" and not UPDATE, reason="make nightly runs it")
@pytest.mark.parametrize("vgroups", VGROUPS)
def test_streams_give_the_golden_answers(connect: Callable[[], Attached], vgroups: int) -> None:
    """All streams at once, with so many vgroups: the golden answers, which are those of the batch queries."""
    client = connect()

    def write(statements: Sequence[str]) -> None:
        for sql in statements:
            client.run(sql)

    play(client.run, write, vgroups)
    finish(client)
    if UPDATE and vgroups == VGROUPS[0]:
        settle(client, unlike_batch)
        write_scripts(client)
    settle(client, differences)
    assert unlike_batch(client) == []
    assert unverified(client) == []


def test_streams_give_the_golden_answers_after_kills(tmp_path: Path) -> None:
    """Python workers and the engine are killed with SIGKILL in turn while rows come: the same golden answers."""
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    prepare(tmp_path / "data")
    client = Killable(tmp_path / "data")

    def write(statements: Sequence[str]) -> None:
        # Some streams count each write to this table: a statement without answer could not simply be repeated.
        repeatable = [place for place, sql in enumerate(statements) if not sql.startswith("INSERT INTO lone")]
        kills = sorted(chance.sample(repeatable, KILLS))
        wait_until(lambda: has_checkpoints(client), PATIENCE_S, "no checkpoints")
        for place, sql in enumerate(statements):
            match kills.index(place) % 2 if place in kills else None:
                case 0:
                    client.run_and_kill_worker(sql, chance)
                case 1:
                    client.run_and_kill_engine(sql, chance)
                case _:
                    client.run(sql)

    try:
        play(client.run, write, 2)
        finish(client)
        settle(client, differences)
        assert unlike_batch(client) == []
        assert unverified(client) == []
        client.process.close()
    finally:
        client.process.end()


def has_checkpoints(client: Client) -> bool:
    """Tells whether each stream has a committed checkpoint to come back to."""
    found = client.run("SELECT DISTINCT stream_name FROM information_schema.ins_stream_checkpoints "
                       "WHERE state = 'COMMITTED'")
    return len(found) == len(read_golden())
