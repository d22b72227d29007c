"""Writes to several vnodes: whoever reads these sees all of one or nothing, and all that is acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs
from kits.engines.embedded import Embedded

from penstock.common.clock import ManualClock
from penstock.mnode.dnode.whole_writes import WholeWrites
from penstock.mnode.write.row_placement import FEW_ROWS
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.vnode.write.vnode_writer import BegunWrite

TABLE = 10
VGROUPS = (1, 2, 3)
T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def vnodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Vnode]]:
    found = {}
    for vgroup in VGROUPS:
        found[vgroup] = Vnode.open(tmp_path_factory.mktemp(f"v{vgroup}"), VnodeOptions(vgroup), fs=FaultyFs(),
                                   clock=ManualClock())
        found[vgroup].tables.define(TABLE, pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())]), 1)
    yield found
    for vnode in found.values():
        vnode.close()


def begun_in(vnode: Vnode, number: int) -> BegunWrite:
    return vnode.writer.begin_write(TABLE, pa.record_batch(
        [pa.array([number], pa.uint64()), pa.array([number], pa.timestamp("ms")), pa.array([number])],
        names=["_tuid", "ts", "v"]))


@dataclass
class UnderWay:
    """A write to several vnodes: what it has in each, and what waits for all of it."""

    parts: dict[int, BegunWrite]
    wait: Callable[[Executor | None], None]


OPS = st.lists(st.one_of(
    st.tuples(st.just("begin"), st.sets(st.sampled_from(VGROUPS), min_size=2)),
    st.tuples(st.just("single"), st.sampled_from(VGROUPS)),
    st.tuples(st.just("part"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.integers(0, 9)),
    st.tuples(st.just("cut"), st.sets(st.sampled_from(VGROUPS), min_size=2)),
), max_size=30)


@settings(max_examples=times(30, 3_000), deadline=None)
@given(ops=OPS)
def test_a_cut_has_all_of_a_write_or_nothing(vnodes: dict[int, Vnode], ops: list[tuple[str, Any]]) -> None:
    """Whatever else is written to some of the vnodes, which acknowledges parts; and it has all that is acknowledged."""
    whole = WholeWrites(vnodes.__getitem__)
    known: list[UnderWay] = []
    for number, (action, argument) in enumerate(ops, 1):
        if action == "begin":
            parts: dict[int, BegunWrite] = {}

            def begin(vgroup: int, parts: dict[int, BegunWrite] = parts, number: int = number) -> BegunWrite:
                parts[vgroup] = begun_in(vnodes[vgroup], number)
                return parts[vgroup]

            known.append(UnderWay(parts, whole.begin([(vgroup, partial(begin, vgroup)) for vgroup in argument])))
        elif action == "single":
            begun_in(vnodes[argument], number).wait()
        elif action == "part" and known:
            one = known[argument % len(known)]
            one.parts[min(one.parts)].settle()
        elif action == "wait" and known:
            known[argument % len(known)].wait(None)
        elif action == "cut":
            acknowledged = {vgroup: vnodes[vgroup].acknowledged_version for vgroup in argument}
            cut = whole.cut(argument)
            assert cut.keys() == argument
            assert all(acknowledged[vgroup] <= version <= vnodes[vgroup].acknowledged_version
                       for vgroup, version in cut.items())
            for one in known:
                assert len({write.version <= cut[vgroup] for vgroup, write in one.parts.items() if vgroup in cut}) < 2
    for one in known:
        one.wait(None)
    assert whole.cut(VGROUPS) == {vgroup: vnodes[vgroup].acknowledged_version for vgroup in VGROUPS}


def test_nobody_reads_a_cut_while_a_write_begins(vnodes: dict[int, Vnode]) -> None:
    """One part may be acknowledged before the other one has its version: who asks then waits for it."""
    whole = WholeWrites(vnodes.__getitem__)
    cuts: list[dict[int, int]] = []
    reader = threading.Thread(target=lambda: cuts.append(whole.cut((1, 2))))
    versions: dict[int, int] = {}

    def first() -> BegunWrite:
        begun = begun_in(vnodes[1], 1)
        versions[1] = begun.wait()
        reader.start()
        return begun

    def second() -> BegunWrite:
        assert not cuts
        begun = begun_in(vnodes[2], 1)
        versions[2] = begun.version
        return begun

    wait = whole.begin([(1, first), (2, second)])
    reader.join()
    assert cuts == [versions]
    wait(None)


# --- statements -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("whole"))
    embedded.all("CREATE DATABASE d VGROUPS 3", "USE d", "CREATE STABLE m (ts TIMESTAMP, v BIGINT) TAGS (a INT)",
                 "CREATE STABLE n (ts TIMESTAMP, v BIGINT, w INT) TAGS (a INT)",
                 *(f"CREATE TABLE {table}{number} USING {table} TAGS ({number})" for table in "mn"
                   for number in range(6)))
    yield embedded
    embedded.close()


TOTAL = "SELECT (SELECT coalesce(sum(v), 0) FROM m) + (SELECT coalesce(sum(v), 0) FROM n)"
COUNT = "SELECT (SELECT count(*) FROM m) + (SELECT count(*) FROM n)"


@pytest.mark.parametrize("statement", [
    f"INSERT INTO m0 VALUES ({T0}, 5) m1 VALUES ({T0}, -2) m2 VALUES ({T0}, -3)",
    f"INSERT INTO m0 VALUES ({T0}, 5) n0 VALUES ({T0}, -5, NULL) n1 VALUES ({T0}, 0, NULL)",
    f"INSERT INTO m (tbname, ts, v) VALUES ('m0', {T0}, 5) ('m1', {T0}, -2) ('m3', {T0}, -3)",
    f"INSERT INTO m0 (ts, v) VALUES ({T0}, 5) m0 VALUES ({T0 + 1}, -5)",
    "DELETE FROM m",
])
def test_a_statement_is_seen_as_a_whole(engine: Embedded, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """Queries between the acknowledgements of its vnodes, and of single rows there, see nothing of it or all."""
    for table in "mn":
        engine.execute(f"DELETE FROM {table}")
    if statement.startswith("DELETE"):
        engine.execute(f"INSERT INTO m0 VALUES ({T0}, 5) m1 VALUES ({T0}, -2) m2 VALUES ({T0}, -3)")
    before = engine.run(COUNT)
    seen: list[tuple[list[Any], list[Any]]] = []
    wait = BegunWrite.wait

    def look_around(write: BegunWrite) -> int:
        monkeypatch.setattr(BegunWrite, "wait", wait)
        seen.append((engine.run(TOTAL), engine.run(COUNT)))
        version = wait(write)  # this vnode has acknowledged its part, others mayn't have
        seen.append((engine.run(TOTAL), engine.run(COUNT)))
        monkeypatch.setattr(BegunWrite, "wait", look_around)
        return version

    monkeypatch.setattr(BegunWrite, "wait", look_around)
    engine.execute(statement)
    monkeypatch.setattr(BegunWrite, "wait", wait)
    after = engine.run(COUNT)
    assert after != before
    assert seen[0] == ([(0,)], before)
    assert all(total == [(0,)] and count in (before, after) for total, count in seen)
    assert seen[-1][1] == after


def test_a_query_reads_all_of_its_tables_at_once(engine: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written between the snapshots of two tables, or of two vnodes, is in none of them."""
    engine.execute("DELETE FROM m")
    engine.execute("DELETE FROM n")
    storage = engine.engine.storage
    snapshot = storage.snapshot
    numbers = iter(range(100))

    def write_first(vgroup: int, table: int, *, as_of: int | None = None) -> object:
        number = next(numbers)
        ts = T0 + number
        engine.execute(f"INSERT INTO m{number % 6} VALUES ({ts}, 1) n{number % 5} VALUES ({ts}, -1, 0)")
        return snapshot(vgroup, table, as_of=as_of)

    monkeypatch.setattr(storage, "snapshot", write_first)
    for _ in range(5):
        assert engine.run(TOTAL) == [(0,)]
        assert engine.run("SELECT sum(v) FROM (SELECT v FROM m UNION ALL SELECT v FROM n UNION ALL SELECT 0)") == [(0,)]


def test_rows_that_a_flush_collapses_meanwhile_are_read_as_of_a_newer_cut(
    engine: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut that can be read no more is taken anew."""
    engine.execute("DELETE FROM m")
    engine.execute("DELETE FROM n")
    storage = engine.engine.storage
    cut = storage.whole_writes.cut
    cuts: list[dict[int, int]] = []

    def write(value: int) -> None:
        engine.execute(f"INSERT INTO m0 VALUES ({T0}, {value}) m1 VALUES ({T0}, {-value}) "
                       f"m2 VALUES ({T0}, {value}) m3 VALUES ({T0}, {-value})")

    def taken(vgroup_ids: Any) -> dict[int, int]:
        cuts.append(cut(vgroup_ids))
        if len(cuts) == 1:
            write(2)
            engine.execute("FLUSH DATABASE d")
        return cuts[-1]

    write(1)
    monkeypatch.setattr(storage.whole_writes, "cut", taken)
    assert engine.run("SELECT sum(v), max(v) FROM m") == [(0, 2)]
    assert len(cuts) == 2


def test_many_rows_are_written_vnode_by_vnode(engine: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for those."""
    began: list[object] = []
    monkeypatch.setattr(WholeWrites, "begin", lambda self, begins: began.append(begins))
    names = pa.array([f"m{number % 6}" for number in range(FEW_ROWS)])
    rows = pa.table({"tbname": names, "ts": pa.array(np.arange(FEW_ROWS) + T0, pa.timestamp("ms", "UTC")),
                     "v": pa.array(np.zeros(FEW_ROWS, np.int64))})
    engine.engine.insert_arrow("m", rows, engine.session)
    assert not began
