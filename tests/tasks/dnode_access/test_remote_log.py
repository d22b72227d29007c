"""Logs over the network: the same records as by files, from any version on, up to the end, and heard of at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs
from kits.basics.waiting import wait_until

from penstock.common.clock import ManualClock, SystemClock
from penstock.common.errors import NotFoundError
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.dnode.dnode_service import DnodeService
from penstock.mnode.dnode.log_service import Logs
from penstock.tasks.dnode_access.dnode_client import DnodeClient
from penstock.tasks.dnode_access.log_notifier import WalNotifier
from penstock.tasks.dnode_access.remote_log import BytesRequest, LogRequest, RemoteLogs
from penstock.wal.log import LogFiles
from penstock.wal.news import WalNews
from penstock.wal.reader import WalGapError, WalReader
from penstock.wal.record import RowsRecord, with_key_columns
from penstock.wal.segment import list_segments, segment_name
from penstock.wal.writer import WalOptions, WalWriter

SECRET = b"secret"
VNODE = 4
SCHEMA = with_key_columns(pa.schema([("_tuid", pa.uint64()), ("ts", pa.timestamp("ms")), ("v", pa.string())]), 1)
PATIENCE_S = 30.0


class Vnodes:
    """Knows one vnode."""

    def vnode(self, vgroup_id: int) -> None:
        if vgroup_id != VNODE:
            raise NotFoundError(f"vnode {vgroup_id} is not open in this process")


class Place:
    """A dnode with one log, and a worker that reaches it over the network only."""

    def __init__(self, root: Path, segment_bytes: int) -> None:
        self.paths = DataPaths(root)
        self.writer = WalWriter.open(self.paths.wal(VNODE), WalOptions(VNODE, segment_bytes=segment_bytes),
                                     fs=FaultyFs(), clock=ManualClock())
        self.requests: list[LogRequest] = []
        logs = Logs(Vnodes(), self.paths, OsFs())  # type: ignore[arg-type]

        def answer(request: Any) -> pa.Table:
            self.requests.append(request)
            return logs.answer(request)

        self.service = DnodeService(SECRET, self._refuse, answer, self._refuse)
        self.client = DnodeClient(self.service.address, SECRET)
        self.logs = RemoteLogs(self.client.ask, self.paths, SystemClock())

    def _refuse(self, *message: object) -> None:
        raise AssertionError(f"nobody sends {message}")

    def write(self, *values: str) -> int:
        """Appends one record of these rows and waits for it; returns its version."""
        count = len(values)
        batch = pa.record_batch([pa.array([1] * count, pa.uint64()), pa.array(range(count), pa.timestamp("ms")),
                                 pa.array(values)], schema=SCHEMA)
        ticket = self.writer.enqueue_rows(7, batch, 5)
        self.writer.commit(ticket)
        return ticket.version

    def reader(self, from_version: int = 1) -> WalReader:
        return WalReader(self.logs.log(VNODE), from_version)

    def close(self) -> None:
        self.client.close()
        self.service.shutdown()
        self.writer.close()


Open = Callable[..., Place]


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    places: list[Place] = []

    def make(segment_bytes: int = 64 << 20) -> Place:
        places.append(Place(tmp_path_factory.mktemp("dnode"), segment_bytes))
        return places[-1]

    yield make
    for each in places:
        each.close()


def read_all(reader: WalReader, **limits: int) -> list[tuple[int, list[str]]]:
    """Returns the version and the values of every record up to the end."""
    found = []
    while records := reader.read(**limits):
        for record in records:
            assert isinstance(record, RowsRecord)
            found.append((record.version, record.batch.column("v").to_pylist()))
    return found


@settings(max_examples=times(8, 200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=25), segment_bytes=st.sampled_from([1000, 20_000]),
       start=st.integers(1, 26), limit=st.integers(1, 9))
def test_every_record_is_read_as_by_files(
    place: Open, sizes: list[int], segment_bytes: int, start: int, limit: int
) -> None:
    """From any version on, in pieces of any size, over any number of segments; and the place in the log is the same."""
    here = place(segment_bytes)
    for number, size in enumerate(sizes):
        here.write(str(number) * (size + 1))
    start = min(start, len(sizes) + 1)
    by_files = WalReader(LogFiles(here.paths.wal(VNODE), OsFs()), start)
    by_network = here.reader(start)
    assert read_all(by_network, max_records=limit) == read_all(by_files, max_records=limit)
    assert by_network.next_version == by_files.next_version == len(sizes) + 1
    assert by_network.bytes_read == by_files.bytes_read
    assert (by_network.access, by_files.access) == ("network", "files")


def test_a_record_larger_than_a_piece_and_many_that_fill_several(place: Open) -> None:
    """What is fetched at once bounds neither records nor what is read."""
    here = place()
    values = ["x" * (9 << 20), *(str(n % 10) * (700 << 10) for n in range(12)), "y"]
    for value in values:
        here.write(value)
    assert [rows for _, rows in read_all(here.reader())] == [[value] for value in values]
    lengths = [request.length for request in here.requests if isinstance(request, BytesRequest)]
    assert sum(lengths) < 1.6 * sum(map(len, values))  # one that isn't whole in a piece is fetched again


def test_nothing_is_sent_to_a_reader_that_doesnt_read(place: Open) -> None:
    """A source task that is held up asks for no bytes: what it doesn't read stays in the log."""
    here = place()
    for number in range(50):
        here.write(str(number) * (400 << 10))
    reader = here.reader()
    assert len(reader.read(max_records=1)) == 1
    sent = [request for request in here.requests if isinstance(request, BytesRequest)]
    assert reader.acknowledged_version == 50
    assert [request for request in here.requests if isinstance(request, BytesRequest)] == sent
    assert sum(request.length for request in sent) < 5 << 20


def test_a_reader_hears_of_the_end_when_somebody_waits_and_reads_no_further(place: Open) -> None:
    """Until a wait has returned, a reader goes as far as it knew; a new one asks, and so does one that was closed."""
    here = place()
    here.write("a")
    reader = here.reader()
    assert read_all(reader) == [(1, ["a"])]
    here.write("b")
    assert read_all(reader) == []
    assert reader.acknowledged_version == 1
    assert here.logs.log(VNODE).wait(1, PATIENCE_S)
    assert read_all(reader) == [(2, ["b"])]
    here.write("c")
    assert here.reader().acknowledged_version == 3
    here.write("d")
    reader.close()
    assert reader.acknowledged_version == 4


def test_a_worker_is_woken_over_the_network(place: Open) -> None:
    """Its notifier waits at the dnode and wakes the stream once the end is another one, which its readers know then."""
    here = place()
    reader = here.reader()
    notifier = WalNotifier(SystemClock(), 0.0005)
    woken = threading.Event()
    notifier.follow(VNODE, 1, 7, lambda: WalNews(here.logs.log(VNODE)), woken.set)
    try:
        for number in range(20):
            woken.clear()
            version = here.write(str(number))
            assert woken.wait(PATIENCE_S)
            wait_until(lambda expected=version: reader.acknowledged_version == expected)  # type: ignore[misc]
    finally:
        notifier.stop()
    assert read_all(reader)[-1][0] == 20


def test_a_segment_that_retention_has_removed_is_a_named_gap(place: Open) -> None:
    """As by files; what comes after the gap can be read."""
    here = place(1000)
    for number in range(12):
        here.write(f"value {number}")
    reader = here.reader()
    reader.read(max_records=1)
    directory = here.paths.wal(VNODE)
    _, second, third, *_ = list_segments(OsFs(), directory)
    (directory / segment_name(second)).unlink()
    with pytest.raises(WalGapError, match=f"version {second} .* deleted by retention"):
        read_all(reader)
    assert read_all(here.reader(third))[0][0] == third
    with pytest.raises(WalGapError, match="never written"):
        here.reader(99).read()


def test_a_vnode_that_is_not_there_is_an_error(place: Open) -> None:
    """It is raised where the log is read, in its own class."""
    here = place()
    with pytest.raises(NotFoundError, match="vnode 5"):
        WalReader(here.logs.log(5)).read()
