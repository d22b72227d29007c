"""Agg tasks on snodes: workers of their own, the same results, and who moves when snodes come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.engines.threaded import Threaded

T0 = 1_700_000_000_000
TABLES = 8
AGGREGATES = "count(*) n, sum(v) s FROM meters"
STREAMS = {
    "by_site": ("TAGS (g INT)", "PARTITION BY g", "g"),
    "overall": ("", "", "0"),
    "by_table": ("TAGS (tag_tbname VARCHAR(20))", "PARTITION BY tbname tag_tbname", "tag_tbname"),
}
"""By name: the tags of its results, what it groups by, and what its results are told apart by."""


class Engine(Threaded):
    """An engine over two vnodes, with some streams that count, and some snodes."""

    def create(self, snodes: int) -> None:
        self.run("CREATE DATABASE d VGROUPS 2 KEEP 36500d", "USE d", "CREATE STABLE meters (ts timestamp, v int) "
                 "TAGS (g int)", *(f"CREATE TABLE t{n} USING meters TAGS ({n % 3})" for n in range(TABLES)))
        for dnode in range(1, snodes + 1):
            # By SQL an engine has one dnode, and so one snode.
            self.engine.catalog.snodes.create(dnode, T0)
        for name, (tags, partition, _) in STREAMS.items():
            self.run(f"CREATE STREAM {name} TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 INTO {name} {tags} AS "
                     f"SELECT _wstart ts, {AGGREGATES} {partition} INTERVAL(10s)")
        self.written = 0

    def insert(self) -> None:
        """Inserts a row into each table, within a new window or the one before."""
        for _ in range(4):
            self.written += 1
            self.run("INSERT INTO " + " ".join(
                f"t{n} VALUES ({T0 + self.written * 4000 + n}, {self.written * 10 + n})" for n in range(TABLES)))

    def equal_batch(self) -> bool:
        """Whether all results are the batch answer."""
        for name, (_, partition, key) in STREAMS.items():
            batch = self.run(f"SELECT {key}, _wstart, {AGGREGATES} {partition} INTERVAL(10s)")
            if sorted(self.run(f"SELECT {key}, ts, n, s FROM {name}")) != sorted(batch):
                return False
        return True

    def agg_nodes(self, stream: str) -> list[tuple[str, int]]:
        """Returns where the agg tasks of a stream are, the other tasks being with their vnodes."""
        tasks = self.run("SELECT task_id, level, node_type, node_id FROM information_schema.ins_stream_tasks "
                         f"WHERE stream_name = '{stream}' ORDER BY task_id")
        assert {node_type for _, level, node_type, _ in tasks if level != "agg"} == {"vnode"}
        return [(node_type, node_id) for _, level, node_type, node_id in tasks if level == "agg"]

    @property
    def snodes(self) -> list[int]:
        return [row[0] for row in self.run("SELECT id FROM information_schema.ins_snodes ORDER BY id")]

    def groups(self) -> dict[str, list[tuple[int, int, str]]]:
        """Returns for each worker group its workers: place, node, and the streams that they host."""
        found: dict[str, list[tuple[int, int, str]]] = {}
        for group, *worker in self.run("SELECT worker_group, worker, node_id, stream_names FROM "
                                       "information_schema.ins_stream_workers ORDER BY worker_group, worker"):
            found.setdefault(group, []).append(tuple(worker))
        return found


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path, checkpointInterval="1h", restartDelayMin="10ms")
    yield engine
    engine.engine.close()


@pytest.mark.parametrize("snodes", [1, 2])
def test_results_are_the_batch_answer_also_when_a_snode_dies(engine: Engine, snodes: int) -> None:
    """Agg tasks behind an exchange run on workers of their own; when one dies they go on from the last checkpoint."""
    engine.create(snodes)
    engine.insert()
    engine.until(engine.equal_batch)
    ids = engine.snodes
    assert engine.agg_nodes("by_site") == [("snode", ids[0]), ("snode", ids[-1])]
    assert engine.agg_nodes("overall") == [("snode", ids[0])]
    assert [node_type for node_type, _ in engine.agg_nodes("by_table")] == ["vnode", "vnode"]
    vnodes = [row[0] for row in engine.run("SELECT vgroup_id FROM information_schema.ins_vgroups ORDER BY 1")]
    workers = sorted(engine.groups().values(), key=str)
    assert [(0, vnodes[0], "by_table"), (1, vnodes[1], "by_table")] in workers
    assert all(worker[:2] == (2 + place, ids[place])
               for group in workers for place, worker in enumerate(group[2:]))
    assert sorted(map(len, workers)) == ([2, 3] if snodes == 1 else [2, 3, 4])
    for name in STREAMS:
        engine.run(f"CHECKPOINT STREAM {name}")
    engine.insert()
    for group in list(engine.runtime.groups):
        if len(group.connections) > 2:
            group.kill(len(group.connections) - 1)
    engine.insert()
    engine.until(lambda: all(engine.stream(name, "attempt", "state") == (1 if name == "by_table" else 2, "RUNNING")
                             for name in STREAMS))
    engine.until(engine.equal_batch)
    assert engine.agg_nodes("by_site") == [("snode", ids[0]), ("snode", ids[-1])]


def test_streams_move_when_they_start_next(engine: Engine) -> None:
    """CREATE and DROP SNODE let streams run as they are; STOP and START take them along, with their state."""
    engine.create(0)
    engine.insert()
    engine.until(engine.equal_batch)
    beside = engine.agg_nodes("by_site")
    assert [node_type for node_type, _ in beside] == ["vnode", "vnode"]
    placement = "SELECT DISTINCT placement FROM information_schema.ins_stream_tasks WHERE stream_name = 'by_site'"
    engine.run("CREATE SNODE ON DNODE 1")
    (snode,) = engine.snodes
    assert engine.agg_nodes("by_site") == beside
    engine.run("STOP STREAM by_site", "START STREAM by_site")
    assert engine.agg_nodes("by_site") == [("snode", snode)] * 2
    (told,) = engine.run(placement)
    assert told == (f"shared only with streams that have their agg tasks on the same snodes: {snode}",)
    engine.insert()
    engine.until(engine.equal_batch)
    engine.run("DROP SNODE ON DNODE 1")
    assert engine.agg_nodes("by_site") == [("snode", snode)] * 2
    engine.insert()
    engine.until(engine.equal_batch)
    engine.run("STOP STREAM by_site", "START STREAM by_site")
    assert engine.agg_nodes("by_site") == beside
    assert engine.run(placement) == [(None,)]
    engine.insert()
    engine.until(engine.equal_batch)


def test_state_goes_along_between_workers_that_reach_no_files(tmp_path: Path) -> None:
    """The engine keeps the state by task: an agg task finds it from whichever machine it asks."""
    engine = Engine(tmp_path / "data", checkpointInterval="1h", restartDelayMin="10ms")
    engine.runtime.data_directory = str(tmp_path / "other")
    try:
        engine.create(0)
        engine.insert()
        engine.until(engine.equal_batch)
        for change in ("CREATE SNODE ON DNODE 1", "DROP SNODE ON DNODE 1"):
            engine.run(change, "STOP STREAM by_site", "START STREAM by_site")
            engine.insert()
            engine.until(engine.equal_batch)
        assert set(engine.run("SELECT DISTINCT wal_access FROM information_schema.ins_stream_tasks "
                              "WHERE level = 'source'")) == {("network",)}
    finally:
        engine.engine.close()


def test_more_vgroups_keep_agg_tasks_on_the_snode(engine: Engine) -> None:
    """The state is divided among more agg tasks, which are where those before were."""
    engine.create(1)
    engine.insert()
    engine.until(engine.equal_batch)
    engine.run("ALTER DATABASE d VGROUPS 4")
    assert engine.agg_nodes("by_site") == [("snode", engine.snodes[0])] * 4
    assert engine.agg_nodes("overall") == [("snode", engine.snodes[0])]
    engine.insert()
    engine.until(engine.equal_batch)
