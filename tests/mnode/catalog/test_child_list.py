"""Child tables in memory, by uid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.mnode.catalog import table_index
from penstock.mnode.catalog.table_index import ChildList
from penstock.sql.schema import ChildTable


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 12), max_size=6, unique=True))), st.integers(0, 3))
def test_it_has_what_was_put_and_not_removed(steps: list[tuple[bool, list[int]]], few: int) -> None:
    """Whatever order uids come in, again or anew, they are found, and told by age."""
    known, wanted = ChildList(), dict[int, ChildTable]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_index, "_FEW", few)
        for number, (puts, uids) in enumerate(steps):
            if puts:
                added = [ChildTable(uid, f"{number}", 1) for uid in uids]
                known.put(added)
                wanted |= {child.uid: child for child in added}
            else:
                gone = [wanted.pop(uid) for uid in uids if uid in wanted]
                known.remove(gone)
            assert list(known) == sorted(wanted.values())
            assert len(known) == len(wanted)
            assert [known.get(uid) for uid in range(14)] == [wanted.get(uid) for uid in range(14)]


def test_what_is_not_there_cannot_be_removed() -> None:
    """Nothing else goes in its place."""
    known = ChildList()
    known.put([ChildTable(1, "a", 1), ChildTable(3, "b", 1)])
    with pytest.raises(KeyError):
        known.remove([ChildTable(2, "c", 1)])
    assert len(known) == 2


@pytest.mark.parametrize("few", [0, 10])
def test_who_reads_meanwhile_keeps_what_there_was(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader has a place, or is on its way through all, when another child table goes: it misses none."""
    monkeypatch.setattr(table_index, "_FEW", few)
    known, children = ChildList(), [ChildTable(uid, f"c{uid}", 1) for uid in range(5)]
    known.put(children)
    on_its_way = iter(known)
    assert next(on_its_way) == children[0]
    known.remove(children[:2])
    assert list(on_its_way) == children[1:]
    assert list(known) == children[2:]
