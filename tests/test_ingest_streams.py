"""Ingests over a broker in memory, in a whole engine without Spark: what is written, and what kills leave."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ingest_kit import FakeBroker, rows, sandbox, state

from penstock.common.fs import OsFs
from penstock.mnode.sandbox import Sandbox
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import RowsRecord

NOW = 1_700_000_000_000
CREATE = "CREATE INGEST i FROM CONNECTION k (TOPIC 't') INTO p.meters TAGS (site = $.where.site) TBNAME ($.device)"


def message(device: int, at: int, value: int) -> bytes:
    return json.dumps({"device": f"d{device}", "ts": NOW + at, "v": value, "where": {"site": f"s{device}"}}).encode()


def logged(box: Sandbox) -> Counter[int]:
    """Returns how often each value is in the logs of all vnodes."""
    found: Counter[int] = Counter()
    for database in box.engine.catalog.databases():
        for vgroup_id in database.vgroup_ids:
            reader = WalReader(LogFiles(box.engine.paths.wal(vgroup_id), OsFs()), 1)
            while records := reader.read():
                for record in records:
                    if isinstance(record, RowsRecord):
                        found.update(record.batch.column("v").to_pylist())
            reader.close()
    return found


def test_messages_become_rows_of_child_tables() -> None:
    broker = FakeBroker()
    with sandbox(broker) as box:
        for number in range(5):
            broker.send(message(number % 2, number, number))
        box.execute(CREATE)
        assert rows(box, "SELECT tbname, site, v FROM meters ORDER BY v") == [
            ("d0", "s0", 0), ("d1", "s1", 1), ("d0", "s0", 2), ("d1", "s1", 3), ("d0", "s0", 4)]
        broker.send(message(7, 9, 9))
        box.run()
        assert rows(box, "SELECT count(*) FROM meters") == [(6,)]
        assert state(box, "state, rows, errors, lag, guarantee, connection, source, target_table") == (
            "RUNNING", 6, 0, 0, "exactly once: the offsets are in the log beside the rows", "k", "t", "meters")


Step = tuple[str, Any]


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 4), st.integers(1, 5),
    st.lists(st.one_of(
        st.tuples(st.just("send"), st.tuples(st.integers(0, 3), st.integers(0, 20))),
        st.tuples(st.just("bad"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["run", "checkpoint", "kill", "step", "crash", "flush"]), st.none())), max_size=40))
def test_kills_at_any_point_neither_lose_nor_double_a_row(
    vgroups: int, partitions: int, piece: int, steps: list[Step]
) -> None:
    broker = FakeBroker(partitions=partitions, piece=piece)
    directory = TemporaryDirectory()
    box = sandbox(broker, vgroups, directory=Path(directory.name))
    box.execute(f"{CREATE} ON_ERROR SKIP")
    wanted: dict[tuple[str, int], int] = {}
    sent = 0
    try:
        for action, what in steps:
            match action:
                case "send":
                    device, at = what
                    # One device sends into one partition, as keys see to it: else nobody knows what comes last.
                    broker.send(message(device, at, sent), device % partitions)
                    wanted[f"d{device}", NOW + at] = sent
                    sent += 1
                case "bad":
                    broker.send(b'{"device": 3', what % partitions)
                case "run":
                    box.run()
                case "step":
                    for stream in box.streams.local_streams().values():
                        stream.step()
                case "checkpoint":
                    box.checkpoint()
                case "kill":
                    box.kill()
                case "flush":
                    box.engine.flush()
                case "crash":
                    box.engine.abandon()
                    for stream in box.streams.local_streams().values():
                        stream.close()
                    box = Sandbox(directory=Path(directory.name), consumers=broker.consumer)
                    box.execute("USE p")
        box.kill()
        found = {(name, ts): v for name, ts, v in rows(box, "SELECT tbname, CAST(ts AS BIGINT), v FROM meters")}
        assert found == wanted
        # Of rows of one key in one write only the last gets into the log.
        in_log = logged(box)
        assert set(in_log.values()) <= {1}
        assert set(wanted.values()) <= set(in_log) <= set(range(sent))
    finally:
        box.close()
        directory.cleanup()
