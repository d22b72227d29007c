"""A memtable keeps all rows, in runs in the order in which they came, and few runs where rows are looked up."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.vnode.store import memtable
from penstock.vnode.store.memtable import LOOKED_UP_FAN_IN, Memtable, Run
from penstock.wal.packed_rows import row_format

_Row = tuple[int, int, int]

KEYS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), min_size=1, max_size=5, unique=True).map(sorted)
STEPS = st.lists(st.one_of(
    st.tuples(st.sampled_from(["run", "run", "few", "packed"]), KEYS),
    st.tuples(st.sampled_from(["look", "take"]), st.integers(0, 9)),
    st.tuples(st.just("back"), st.none())), max_size=40)


def _batch(keys: list[tuple[int, int]]) -> pa.RecordBatch:
    return pa.record_batch({"_tuid": pa.array([uid for uid, _ in keys], pa.uint64()),
                            "ts": pa.array([ts for _, ts in keys], pa.timestamp("ms"))})


LAYOUT = row_format(_batch([]).schema)


def _run(keys: list[tuple[int, int]], version: int) -> Run:
    batch = _batch(keys)
    versions = pa.array(np.full(len(keys), version, np.uint64))
    return Run.of(pa.RecordBatch.from_arrays([*batch.columns, versions], names=["_tuid", "ts", "_ver"]), None)


def _rows(runs: Iterable[Run]) -> list[list[_Row]]:
    return [list(zip(run.tuid.tolist(), run.ts.tolist(), run.version.tolist(), strict=True)) for run in runs]


@given(STEPS)
def test_looking_rows_up_changes_no_rows_and_no_order(steps: list[tuple[str, object]]) -> None:
    """Rows stay sorted within runs, versions ascend from run to run, and a failed flush puts back what it took."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memtable, "LOOKED_UP_FAN_IN", 3)
        patch.setattr(memtable, "_LOOKED_UP_LIMITS", (4, 12))
        table, expected, taken = Memtable(), set[_Row](), list[Run]()
        for version, (kind, what) in enumerate(steps, 1):
            if isinstance(what, list):
                if kind == "run":
                    table.append(_run(what, version), 1)
                elif kind == "packed":
                    assert LAYOUT is not None
                    for key in what:
                        table.append_packed(LAYOUT.pack(key), key, version, LAYOUT, updates=False)
                        assert table.packed_version(key) in (None, version)
                else:
                    table.append_few(_batch(what), version, None, 1)
                    assert table.packed_version(what[0]) is None
                expected |= {(uid, ts, version) for uid, ts in what}
            elif kind == "look":
                assert isinstance(what, int)
                found = [row for rows in _rows(table.runs_between(what, what + 2)) for row in rows]
                assert {row for row in expected if what <= row[1] <= what + 2} <= {*found}
            elif kind == "take" and not taken:
                assert isinstance(what, int)
                taken = table.take_until(version - what)
                expected -= {row for rows in _rows(taken) for row in rows}
                assert all(row[2] > version - what for row in expected)
            elif kind == "back":
                table.put_back(taken)
                expected |= {row for rows in _rows(taken) for row in rows}
                taken = []
            found_runs = _rows(table.runs)
            assert all(rows == sorted(rows) for rows in found_runs)
            assert sorted(row for rows in found_runs for row in rows) == sorted(expected)
            assert table.num_rows == len(expected)
            versions = [[row[2] for row in rows] for rows in found_runs]
            assert all(max(before) <= min(after) for before, after in pairwise(versions))


def test_runs_that_rows_are_looked_up_in_stay_few() -> None:
    """Their number grows with the logarithm of that of rows."""
    table = Memtable()
    keys = [(1, ts) for ts in range(600)]
    for version in range(1, 301):
        table.append(_run(keys, version), 1)
        assert len(table.runs_between(0, 5)) < 3 * LOOKED_UP_FAN_IN
    assert table.num_rows == 300 * len(keys)


def test_runs_that_nobody_looks_rows_up_in_stay_as_they_are() -> None:
    """Who appends pays for no merging, and runs of other times count for nothing."""
    table = Memtable()
    for version in range(1, 41):
        table.append(_run([(1, version * 1000 + ts) for ts in range(600)], version), 1)
    assert len(table.runs) == 40
    assert len(table.runs_between(5000, 5100)) == 1
    assert len(table.runs) == 40
