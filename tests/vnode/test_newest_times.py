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
    st.tuples(st.sampled_from(["written", "stored"]), TIMES),
    st.tuples(st.sampled_from(["deleted", "forget"]), st.lists(UIDS, max_size=4)),
    st.tuples(st.just("deleted"), st.none()),
)


@given(st.lists(STEP, max_size=12))
def test_columns_say_what_a_dictionary_says(steps: list[tuple[str, object]]) -> None:
    """Newest times and certainty after any writes, deletes, loads and drops."""
    newest, times, certain, likely = NewestTimes(), dict[int, int](), set[int](), set[int]()
    for kind, what in steps:
        if isinstance(what, dict):
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
