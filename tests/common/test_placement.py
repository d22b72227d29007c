"""Which vgroup a table belongs to, and what a split changes of that."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.common.placement import cut_one, cut_to, even_shares, owner, owners, place, places

NAMES = [f"db.t{n}" for n in range(2_000)]
SPLITS = st.tuples(st.integers(1, 7), st.lists(st.integers(0, 6), max_size=6))


@given(places=st.integers(1, 40), name=st.text(max_size=20))
def test_even_shares_are_those_of_a_database_that_was_never_split(places: int, name: str) -> None:
    """Tables of databases that are there already are found where they are."""
    assert owner(name, even_shares(places)) == place(name, places)


@given(case=SPLITS)
def test_a_split_moves_tables_from_one_vgroup_to_the_new_one_only(case: tuple[int, list[int]]) -> None:
    """Each table belongs to one share; only those of the share that is halved change, about half of them."""
    places, splits = case
    shares = even_shares(places)
    for which in (one % len(shares) for one in splits):
        before = [owner(name, shares) for name in NAMES]
        cut = cut_one(shares, which)
        assert cut.parents == (*range(len(shares)), which)
        after = [owner(name, cut.shares) for name in NAMES]
        assert {(old, new) for old, new in zip(before, after, strict=True) if old != new} <= {(which, len(shares))}
        moved, had = after.count(len(shares)), before.count(which)
        assert had < 200 or 0.3 * had < moved < 0.7 * had
        shares = cut.shares


@given(places=st.integers(1, 8), more=st.integers(0, 12))
def test_more_vgroups_come_from_the_largest(places: int, more: int) -> None:
    """No share is more than twice as large as another, and each new one has its tables from its parent."""
    shares = even_shares(places)
    cut = cut_to(shares, places + more)
    assert len(cut.shares) == len(cut.parents) == places + more
    moduli = {share.modulus for share in cut.shares}
    assert max(moduli) <= 2 * min(moduli)
    for name in NAMES[:200]:
        assert cut.parents[owner(name, cut.shares)] == owner(name, shares)


def test_doubled_vgroups_are_even_again() -> None:
    """Where every share was halved, tables are spread as evenly as if there had been so many vgroups from the start."""
    counts = Counter(owner(name, cut_to(even_shares(3), 6).shares) for name in NAMES)
    assert sorted(counts) == list(range(6))
    assert max(counts.values()) < 1.4 * min(counts.values())


def test_many_are_placed_as_each_would_be() -> None:
    """Of a hash for all of them in one go, with and without halved shares."""
    tables = [f"m{number}" for number in range(200)] + ["Öl", "x" * 192]
    shares = cut_one(cut_to(even_shares(3), 5).shares, 2).shares
    assert places("d", tables, 7).tolist() == [place(f"d.{table}", 7) for table in tables]
    assert owners("d", tables, shares) == [owner(f"d.{table}", shares) for table in tables]
