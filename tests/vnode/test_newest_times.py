"""The newest times of child tables as columns: the same as a dictionary would say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.vnode.store.newest_times import NewestTimes
from penstock.vnode.store.sorted_keys import TS_MIN

UIDS = st.integers(0, 9)
TIMES = st.dictionaries(UIDS, st.integers(-5, 5), max_size=6)
STEP = st.one_of(
    st.tuples(st.just("few"), TIMES),
    st.tuples(st.sampled_from(["written", "stored"]), TIMES),
    st.tuples(st.sampled_from(["deleted", "forget"]), st.lists(UIDS, max_size=4)),
    st.tuples(st.just("deleted"), st.none()),
)


@given(st.lists(STEP, max_size=12))
def test_columns_say_what_a_dictionary_says(steps: list[tuple[str, object]]) -> None:
    """Newest times and certainty after any writes, deletes, loads and drops."""
    newest, times, certain, likely = NewestTimes(), dict[int, int](), set[int](), set[int]()
    for kind, what in steps:
        if kind == "few":
            assert isinstance(what, dict)
            _write_few(newest, dict(sorted(what.items())), times, certain, likely)
        elif isinstance(what, dict):
            ordered = dict(sorted(what.items()))
            getattr(newest, kind)(np.array(list(ordered), np.uint64), np.array(list(ordered.values()), np.int64))
            for uid, ts in what.items():
                if kind == "written" and ts >= times.get(uid, TS_MIN):
                    certain.add(uid)
                if ts >= times.get(uid, TS_MIN):
                    likely.add(uid)
                times[uid] = max(ts, times.get(uid, TS_MIN))
        else:
            gone = None if what is None else tuple(what)  # type: ignore[arg-type]
            newest.deleted(gone)
            certain -= set(times) if gone is None else set(gone)
            likely -= set(times) if gone is None else set(gone)
            if kind == "forget":
                assert gone is not None
                newest.forget(gone)
                times = {uid: ts for uid, ts in times.items() if uid not in gone}
        every = np.arange(10, dtype=np.uint64)
        found, sure = newest.of(every)
        assert found.tolist() == [times.get(uid, TS_MIN) for uid in range(10)]
        assert newest.likely(every).tolist() == [uid in likely for uid in range(10)]
        assert sure.tolist() == [uid in certain for uid in range(10)]
        assert [newest.get(uid) for uid in range(10)] == [times.get(uid) for uid in range(10)]
        assert newest.tuids.tolist() == sorted(times)


def _write_few(
    newest: NewestTimes, rows: dict[int, int], times: dict[int, int], certain: set[int], likely: set[int]
) -> None:
    """Writes rows if all is known about them: which that is so of, and what was there before."""
    verdict = newest.verdict_on(list(rows), list(rows.values()))
    known = all(uid not in times or ts > times[uid] or (ts == times[uid] and uid in certain)
                for uid, ts in rows.items())
    assert (verdict is not None) == known
    if verdict is None:
        return
    before = [ts if times.get(uid) == ts else TS_MIN for uid, ts in rows.items()]
    assert verdict.times == (before if any(ts != TS_MIN for ts in before) else None)
    newest.taken(rows.keys(), rows.values())
    times.update(rows)
    certain.update(rows)
    likely.update(rows)


def test_few_rows_that_are_not_sorted_or_come_twice_are_looked_at() -> None:
    """Only what is sorted by key, each key once, is decided on row by row."""
    newest = NewestTimes()
    assert newest.verdict_on([1, 1, 2], [5, 6, 5]) is not None
    assert newest.verdict_on([2, 1], [5, 5]) is None
    assert newest.verdict_on([1, 1], [5, 5]) is None
    assert newest.verdict_on([1, 1], [6, 5]) is None
