"""Logs that are copies of another: byte for byte the same, whole and fitting records only, cut for good, power cuts."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs
from simulation.disk import Disk, PowerLost

from penstock.common.clock import ManualClock
from penstock.common.errors import CorruptionError, InvalidValueError, NotFoundError, StorageError
from penstock.common.fs import Fs, OsFs
from penstock.wal.copied_log import CopiedLog
from penstock.wal.copied_records import CopiedRecords
from penstock.wal.epoch_file import EPOCHS_NAME, load_epochs, save_epochs
from penstock.wal.log import LogFiles
from penstock.wal.packed_rows import row_format
from penstock.wal.reader import WalReader
from penstock.wal.record import IngestOrigin, Record, RowsRecord, with_key_columns
from penstock.wal.segment import SEGMENT_HEADER_SIZE, list_segments, segment_name
from penstock.wal.writer import WalOptions, WalWriter

SCHEMA = with_key_columns(pa.schema([("_tuid", pa.uint64()), ("ts", pa.timestamp("ms")), ("v", pa.int64())]), 1)
KINDS = ("rows", "packed", "delete", "meta", "mark", "ingest")


class Side:
    """A log with what copies it; `fs` is its disk."""

    def __init__(self, directory: Path, fs: Fs | None = None, *, level: int = 1) -> None:
        self.directory = directory
        self.fs = fs or FaultyFs()
        self.level = level
        self.open()

    def open(self) -> None:
        self.log = WalWriter.open(
            self.directory, WalOptions(1, self.level, 1500), fs=self.fs, clock=ManualClock())
        self.copied = CopiedLog(self.log, self.directory, self.fs, 1)

    def reopen(self) -> None:
        self.log.close()
        self.open()

    def write(self, kind: str, number: int) -> None:
        """Appends one record; what it holds is told by `number`."""
        log = self.log
        rows = pa.record_batch([pa.array([1], pa.uint64()), pa.array([number], pa.timestamp("ms")), pa.array([number])],
                               schema=SCHEMA)
        layout = row_format(SCHEMA)
        assert layout is not None
        ticket = {
            "rows": lambda: log.enqueue_rows(7 + number % 2, rows, number),
            "packed": lambda: log.enqueue_packed(7, SCHEMA, [layout.pack((1, number, number))], layout, number),
            "delete": lambda: log.enqueue_delete(7, (1,), number, number + 1, number),
            "meta": lambda: log.enqueue_meta({"n": "x" * (number % 40)}, number),
            "mark": lambda: log.enqueue_time_mark("w", number, number),
            "ingest": lambda: log.enqueue_rows(7, rows, number, IngestOrigin(3, "p", "s", number)),
        }[kind]()
        log.commit(ticket)

    @property
    def version(self) -> int:
        return self.log.acknowledged_version

    def segments(self) -> dict[int, bytes]:
        """Returns the bytes of all segments."""
        return {first: (self.directory / segment_name(first)).read_bytes()
                for first in list_segments(OsFs(), self.directory)}


def catch_up(active: Side, standby: Side, size: int = 1 << 20, last: int | None = None) -> None:
    """Copies all that is missing, up to a version."""
    while (records := active.copied.read(standby.version, size, last)) is not None:
        standby.copied.append(records)


def records_in(directory: Path, first: int = 1) -> list[Record]:
    reader = WalReader(LogFiles(directory, OsFs()), first)
    found: list[Record] = []
    while records := reader.read():
        found += records
    reader.close()
    return found


def filled(directory: Path, count: int, *, start: int = 0) -> Side:
    """Returns a log with so many records of all kinds, over several segments."""
    side = Side(directory)
    for number in range(start, start + count):
        side.write(KINDS[number % len(KINDS)], number)
    return side


@settings(max_examples=times(24, 600), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 200)), st.tuples(st.just("copy"), st.integers(1, 3000)),
    st.tuples(st.just("reopen"), st.integers(0, 1)), st.tuples(st.just("cut"), st.integers(0, 40))), max_size=60))
def test_a_copy_has_the_same_bytes(script: list[tuple[str, int]]) -> None:
    """Whatever is written, however it is copied, cut off, and copied again: the files are the same, and can be read."""
    with tempfile.TemporaryDirectory() as folder:
        active, standby = Side(Path(folder, "a")), Side(Path(folder, "b"))
        for action, number in script:
            if action == "copy":
                records = active.copied.read(standby.version, number)
                if records is not None:
                    assert records.last - records.after == 1 or len(records.data) <= number
                    standby.copied.append(records)
            elif action == "reopen":
                (active, standby)[number].reopen()
            elif action == "cut":
                before = standby.version
                target = max(before - number, 0)
                assert standby.copied.cut(target) == before - target
                assert standby.version == target
                assert before == target or standby.log.synced_version == target
            else:
                active.write(action, number)
        catch_up(active, standby)
        assert standby.segments() == active.segments()
        assert standby.log.tail == active.log.tail
        assert records_in(standby.directory) == records_in(active.directory)
        # Who has followed writes on as if it had written all.
        standby.write("rows", 999)
        standby.write("packed", 1000)
        standby.reopen()
        assert len(records_in(standby.directory)) == active.version + 2


def test_chunks_are_of_one_segment_and_end_where_they_are_told(tmp_path: Path) -> None:
    """Each begins right behind the one before; a segment's header comes with its first record."""
    active = filled(tmp_path / "a", 60)
    after, opened = 0, 0
    while (records := active.copied.read(after, 1 << 20)) is not None:
        assert records.after == after
        assert records.opens_segment == (after + 1 in active.segments())
        opened += records.opens_segment
        after = records.last
    assert (after, opened) == (60, len(active.segments()))
    for end in range(1, 60):
        records = active.copied.read(end - 1, 1 << 20, end)
        assert records is not None
        assert (records.after, records.last) == (end - 1, end)
        assert active.copied.read(end, 1 << 20, end) is None


def test_every_flipped_bit_of_a_chunk_is_noticed(tmp_path: Path) -> None:
    """Damaged or shortened records are refused as a whole, and leave nothing behind."""
    active, standby = filled(tmp_path / "a", 12), Side(tmp_path / "b")
    catch_up(active, standby, last=3)
    records = active.copied.read(3, 1 << 20)
    assert records is not None
    before = standby.segments()
    for at in range(len(records.data)):
        flipped = bytearray(records.data)
        flipped[at] ^= 1 << (at % 8)
        for data in (bytes(flipped), records.data[:at]):
            with pytest.raises(InvalidValueError, match="don't fit"):
                standby.copied.append(replace(records, data=data))
    assert standby.segments() == before
    catch_up(active, standby)
    assert standby.segments() == active.segments()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Gaps, records that are there, those of another vgroup or history, and middles of segments change nothing."""
    active, other, standby = filled(tmp_path / "a", 40), filled(tmp_path / "c", 40, start=3), Side(tmp_path / "b")
    middle = next(version for version in range(1, 40) if version + 1 not in active.segments())
    refused = [active.copied.read(middle, 900)]
    catch_up(active, standby, last=20)
    refused += [active.copied.read(18, 900), active.copied.read(21, 900)]
    refused += [other.copied.read(after, 900) for after in (20, *(first - 1 for first in other.segments()))]
    strange = CopiedLog(standby.log, standby.directory, standby.fs, 2)
    before = standby.segments()
    for records in refused:
        assert records is not None
        with pytest.raises(InvalidValueError, match="don't fit"):
            standby.copied.append(records)
    for place in [*active.segments(), 21]:
        records = active.copied.read(place - 1, 900)
        assert records is not None
        for changed in (replace(records, opens_segment=not records.opens_segment), replace(records, last=99),
                        replace(records, data=b""), replace(records, data=records.data + bytes(8))):
            with pytest.raises(InvalidValueError, match="don't fit"):
                standby.copied.append(changed)
        if records.opens_segment:
            with pytest.raises(InvalidValueError, match="don't fit"):
                strange.append(records)
    assert standby.segments() == before
    catch_up(active, standby)
    assert standby.segments() == active.segments()


def test_a_log_that_begins_later_says_so(tmp_path: Path) -> None:
    """What retention has deleted can't be copied, and a log isn't cut before its beginning."""
    active = filled(tmp_path / "a", 40)
    first, second = list(active.segments())[:2]
    (active.directory / segment_name(first)).unlink()
    assert active.copied.begin == second
    for after in range(second - 1):
        with pytest.raises(NotFoundError, match=f"begins with version {second}"):
            active.copied.read(after, 900)
    records = active.copied.read(second - 1, 900)
    assert records is not None
    assert records.opens_segment
    for version in range(second):
        with pytest.raises(InvalidValueError):
            active.copied.cut(version)
    assert active.copied.cut(second) == 40 - second
    assert active.version == second


@pytest.mark.parametrize("level", [1, 2])
def test_damage_on_the_disk_is_named_by_who_reads(tmp_path: Path, level: int) -> None:
    """A flipped byte isn't sent to others, whatever record it is in."""
    active = Side(tmp_path / "a", level=level)
    for number in range(5):
        active.write("rows", number)
    path = tmp_path / "a" / segment_name(1)
    good = path.read_bytes()
    for at in range(SEGMENT_HEADER_SIZE, len(good), 11):
        path.write_bytes(good[:at] + bytes([good[at] ^ 16]) + good[at + 1:])
        with pytest.raises(CorruptionError, match="damaged"):
            CopiedLog(active.log, active.directory, active.fs, 1).read(0, 1 << 20)
    path.write_bytes(good)
    assert active.copied.read(0, 1 << 20) is not None


@pytest.mark.parametrize("target", range(0, 30, 3))
def test_what_was_cut_is_kept_as_a_segment_of_its_own(tmp_path: Path, target: int) -> None:
    """All rows are there, readable as any log; a second cut has a file of its own."""
    side = filled(tmp_path / "a", 30)
    lost = records_in(side.directory, target + 1)
    for turn in (1, 2):
        assert side.copied.cut(target) == len(lost)
        folder = tmp_path / str(turn)
        folder.mkdir()
        shutil.copy(side.directory / f"cut-{target + 1}-{turn}.log", folder / segment_name(target + 1))
        WalWriter.open(folder, WalOptions(1), fs=OsFs(), clock=ManualClock()).close()
        assert records_in(folder, target + 1) == lost
        for number in range(target, 30):
            side.write(KINDS[number % len(KINDS)], number)
    assert side.copied.cut(30) == side.copied.cut(31) == 0


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory: the simulated disk says what survives, not the machine's."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="power-", dir=shared if shared.is_dir() else None) as name:
        yield Path(name)


def copy_and_cut(active: Side, standby: Side, promised: list[int]) -> None:
    """Copies with syncs, cuts, copies again; `promised` is told what must be there: no less, nor more while cutting."""
    for end in (7, 15, 24):
        catch_up(active, standby, 700, end)
        standby.log.sync()
        promised[0] = end
    promised[0] = 9
    standby.copied.cut(9)
    catch_up(active, standby, 700, 30)
    standby.log.sync()
    promised[0] = 30


def test_a_power_cut_leaves_a_beginning_of_the_log(memory: Path, tmp_path: Path) -> None:
    """Wherever it comes: what was synced and not cut is there, and copying goes on to the same bytes."""
    active = filled(tmp_path / "a", 40)
    before = records_in(active.directory)
    for boundary in range(1, 1000):
        disk = Disk(memory, random.Random(boundary), faults={boundary: "power"})
        promised = [0]
        with contextlib.suppress(PowerLost):
            copy_and_cut(active, Side(memory / "b", disk.view("first")), promised)
        disk.kill("first")
        disk.faults.clear()
        done = not disk.off
        if not done:
            disk.cut_power()
        standby = Side(memory / "b", disk.view("second"))
        assert standby.version >= promised[0], f"boundary {boundary}: {disk.failed}"
        assert records_in(standby.directory) == before[:standby.version]
        catch_up(active, standby)
        assert standby.segments() == active.segments()
        disk.kill("second")
        shutil.rmtree(memory / "b")
        if done:
            break
    assert boundary > 40


@pytest.mark.parametrize("fault", ["error", "short", "sync"])
def test_a_refused_call_changes_nothing_or_closes_the_log(tmp_path: Path, fault: str) -> None:
    """After an error copying goes on; where nobody knows what the disk has, it goes on after a restart."""
    active = filled(tmp_path / "a", 40)
    for fail_at in range(1, 1000):
        fs = FaultyFs(fault=fault, fail_at=0)
        standby = Side(tmp_path / "b", fs)
        fs.calls, fs.fail_at = 0, fail_at
        try:
            copy_and_cut(active, standby, [0])
        except StorageError:
            assert records_in(standby.directory) == records_in(active.directory)[:standby.version]
        fs.fail_at = 0
        if standby.log.failed is not None:
            standby.open()
        catch_up(active, standby)
        assert standby.segments() == active.segments()
        shutil.rmtree(tmp_path / "b")
        if not fs.failed:
            break
    assert fail_at > 5


def test_a_segment_without_records_gives_way(tmp_path: Path) -> None:
    """A crash may leave a new segment's header alone: the records that follow, or others, go on behind it."""
    active = filled(tmp_path / "a", 40)
    for first in active.segments():
        for same in (True, False):
            standby = Side(tmp_path / "b")
            catch_up(active, standby, last=first - 1)
            header = active.segments()[first][:SEGMENT_HEADER_SIZE]
            if not same:
                other = Side(tmp_path / "c")
                catch_up(active, other, last=first - 1)
                shutil.copytree(other.directory, tmp_path / "d")
            standby.log.close()
            (tmp_path / "b" / segment_name(first)).write_bytes(header)
            standby.open()
            assert standby.version == first - 1
            if same:
                catch_up(active, standby)
                assert standby.segments() == active.segments()
            else:
                going_on = Side(tmp_path / "d")  # whose segment has not ended there
                going_on.write("delete", 1)
                catch_up(going_on, standby)
                assert standby.segments()[first if first == 1 else max(standby.segments())] == (
                    going_on.segments()[max(going_on.segments())])
                shutil.rmtree(tmp_path / "c")
                shutil.rmtree(tmp_path / "d")
            shutil.rmtree(tmp_path / "b")


def test_a_log_without_epochs_is_as_before(tmp_path: Path) -> None:
    """There is no list until somebody notes an epoch; then it is as it was written, or called damaged."""
    side = filled(tmp_path / "a", 3)
    assert load_epochs(OsFs(), side.directory) == load_epochs(OsFs(), tmp_path / "none") == ()
    assert not (side.directory / EPOCHS_NAME).exists()
    save_epochs(OsFs(), side.directory, [(1, 1), (4, 2)])
    assert load_epochs(OsFs(), side.directory) == ((1, 1), (4, 2))
    side.reopen()
    path = side.directory / EPOCHS_NAME
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
        with pytest.raises(CorruptionError):
            load_epochs(OsFs(), side.directory)
    for wrong in ([(4, 1), (1, 2)], [(1, 5), (2, 3)]):
        save_epochs(OsFs(), side.directory, wrong)
        with pytest.raises(CorruptionError, match="follow"):
            load_epochs(OsFs(), side.directory)


def test_rows_of_a_copy_are_those_of_the_log(tmp_path: Path) -> None:
    """A small example by hand."""
    active, standby = filled(tmp_path / "a", 2), Side(tmp_path / "b")
    records = active.copied.read(0, 1)
    assert isinstance(records, CopiedRecords)
    assert (records.after, records.last, records.opens_segment) == (0, 1, True)
    standby.copied.append(records)
    (found,) = records_in(standby.directory)
    assert isinstance(found, RowsRecord)
    assert found.batch.to_pydict()["v"] == [0]
