"""Searches and orders over sorted keys agree with plain Python."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.vnode.store.key_search import KeySearch
from penstock.vnode.store.sorted_keys import (
    expand,
    find_ranges,
    in_key_order,
    kept_versions,
    key_codes,
    key_order,
    stable_order,
    strictly_ascending,
)

KEYS = st.lists(st.tuples(st.sampled_from([1, 2, 2**63 + 5]), st.integers(-5, 5)), max_size=40).map(sorted)


@given(KEYS, st.lists(st.tuples(st.sampled_from([0, 1, 2, 2**63 + 5]), st.integers(-6, 6), st.integers(-6, 6)),
                      max_size=40))
def test_ranges_hold_exactly_the_wanted_rows(keys: list[tuple[int, int]], wanted: list[tuple[int, int, int]]) -> None:
    """Few and many searches at once, missing tuids and reversed bounds included."""
    tuid, ts = np.array([k[0] for k in keys], np.uint64), np.array([k[1] for k in keys], np.int64)
    columns = [[w[i] for w in wanted] for i in range(3)]
    start, stop = find_ranges(tuid, ts, np.array(columns[0], np.uint64), *(np.array(c, np.int64) for c in columns[1:]))
    owner, position = expand(start, stop)
    found = sorted(zip(owner.tolist(), position.tolist(), strict=True))
    assert found == sorted((i, p) for i, (uid, low, high) in enumerate(wanted)
                           for p, (u, t) in enumerate(keys) if u == uid and low <= t <= high)


@given(KEYS.filter(bool) | KEYS.filter(bool).map(lambda keys: [(uid % 7, ts) for uid, ts in keys]).map(sorted),
       st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 2**63 + 5]), st.integers(-6, 6)), max_size=30).map(sorted))
def test_rows_are_found_by_their_keys(keys: list[tuple[int, int]], wanted: list[tuple[int, int]]) -> None:
    """Of keys that one number each stands for, and of those that are too far apart."""
    tuid, ts = np.array([k[0] for k in keys], np.uint64), np.array([k[1] for k in keys], np.int64)
    owner, row = KeySearch(tuid, ts).rows_at(
        np.array([w[0] for w in wanted], np.uint64), np.array([w[1] for w in wanted], np.int64))
    assert list(zip(owner.tolist(), row.tolist(), strict=True)) == [
        (i, p) for i, one in enumerate(wanted) for p, key in enumerate(keys) if key == one]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 2**63 + 5]), st.integers(-5, 5) | st.just(-2**63),
                          st.integers(0, 9)), max_size=40))
def test_rows_are_ordered_by_key_and_version(rows: list[tuple[int, int, int]]) -> None:
    """Whichever way is taken; equal ones stay as they are."""
    tuid, ts, version = (np.array([row[i] for row in rows], kind)
                         for i, kind in enumerate((np.uint64, np.int64, np.uint64)))
    assert key_order(tuid, ts, None, version).tolist() == sorted(range(len(rows)), key=lambda place: rows[place])


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(1, 6)), min_size=1, max_size=20),
       st.none() | st.integers(0, 7))
def test_kept_versions_are_those_that_a_reader_may_see(rows: list[tuple[int, int, int]], pin: int | None) -> None:
    """A row stays if for some version, not before the pin, it is the newest of its key."""
    rows = sorted(set(rows))
    tuid, ts, version = (np.array([r[i] for r in rows], kind)
                         for i, kind in enumerate((np.uint64, np.int64, np.uint64)))
    order = key_order(tuid, ts, None, version)
    kept = [rows[i] for i in order[kept_versions(tuid[order], ts[order], None, version[order], pin)].tolist()]
    readers = range(7 if pin is None else pin, 8)
    seen = {max((r for r in rows if r[:2] == key and r[2] <= reader), default=None)
            for key in {r[:2] for r in rows} for reader in readers} - {None}
    assert kept == sorted(seen)


@given(KEYS)
def test_strictly_ascending_means_sorted_without_repeats(keys: list[tuple[int, int]]) -> None:
    """Sorted keys are strictly ascending exactly when none occurs twice."""
    tuid, ts = np.array([k[0] for k in keys], np.uint64), np.array([k[1] for k in keys], np.int64)
    assert strictly_ascending(tuid, ts) == (len(set(keys)) == len(keys))


@given(st.lists(st.tuples(st.sampled_from([3, 1, 2, 2**63 + 5]), st.integers(1, 12)), max_size=12))
def test_runs_are_ordered_as_rows_are(runs: list[tuple[int, int]]) -> None:
    """Short and long runs of equal ids: the order is that of a stable sort."""
    ids = [id for id, count in runs for _ in range(count)]
    assert stable_order(np.array(ids, np.uint64)).tolist() == sorted(range(len(ids)), key=ids.__getitem__)


@given(st.integers(0, 2**64 - 1 - 70_000), st.sampled_from([200, 65_535, 65_536, 70_000]), st.booleans())
def test_many_ids_are_ordered_as_few_are(low: int, span: int, runs: bool) -> None:
    """Whether or not they are near enough to each other to be sorted as numbers of 16 bits."""
    ids = np.random.default_rng(span).integers(0, span, 1_500, np.uint64, endpoint=True) + np.uint64(low)
    ids[[3, 5]] = low, low + span
    ids = np.repeat(ids, 5) if runs else ids
    values = ids.tolist()
    assert stable_order(ids).tolist() == sorted(range(len(values)), key=values.__getitem__)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), max_size=30),
       st.booleans(), st.booleans(), st.booleans())
def test_order_by_key_and_version(rows: list[tuple[int, ...]], grouped: bool, sorted_: bool, composite: bool) -> None:
    """Rows in any order, table by table, or in order already, with one key column or two."""
    rows = sorted(rows) if sorted_ else sorted(rows, key=lambda row: row[0]) if grouped else rows
    rows = rows if composite else [(tuid, ts, 0, version) for tuid, ts, _, version in rows]
    tuid, ts, codes, version = (np.array([row[n] for row in rows], kind)
                                for n, kind in enumerate((np.uint64, np.int64, np.int64, np.uint64)))
    second = codes if composite else None
    assert in_key_order(tuid, ts, second, version) == (rows == sorted(rows))
    assert key_order(tuid, ts, second, version).tolist() == sorted(range(len(rows)), key=rows.__getitem__)


@given(st.lists(st.text(max_size=3), min_size=1) | st.lists(st.integers(0, 2**64 - 1), min_size=1)
       | st.lists(st.integers(-2**63, 2**63 - 1), min_size=1))
def test_key_codes_order_as_their_values(values: list[str] | list[int]) -> None:
    """Codes of strings, signed and unsigned integers compare as the values do."""
    type_ = pa.string() if isinstance(values[0], str) else pa.int64() if min(values) < 0 else pa.uint64()
    codes = key_codes(pa.array(values, type_)).tolist()
    encoded = [v.encode() if isinstance(v, str) else v for v in values]
    for a, x in zip(encoded, codes, strict=True):
        for b, y in zip(encoded, codes, strict=True):
            assert (a == b) == (x == y)
            if not isinstance(a, bytes):
                assert (a < b) == (x < y)  # type: ignore[operator]
