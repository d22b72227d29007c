"""Who may stay connected to a port: bounds in all, per address, and for those who haven't logged in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.common.admission import Admission, ConnectionBounds

BOUNDS = ConnectionBounds(strangers=4, login_timeout_s=10.0, per_address=6, total=8)
ACTS = st.lists(st.tuples(st.sampled_from(["open", "login", "close", "wait"]), st.integers(0, 3)), max_size=60)


@given(ACTS)
def test_bounds_hold_whatever_happens(acts: list[tuple[str, int]]) -> None:
    """After each look no bound is passed, nobody is overdue, and what is counted is what is there."""
    admission: Admission[int] = Admission(BOUNDS)
    now, cut_in_all = 0.0, 0
    open_now: dict[int, tuple[str, float]] = {}
    strangers: set[int] = set()
    for number, (act, which) in enumerate(acts):
        some = sorted(open_now)[which:which + 1]
        if act == "open":
            open_now[number] = str(which), now
            strangers.add(number)
            admission.opened(number, str(which), now)
        elif act == "wait":
            now += which * 3.0
        for key in some:
            if act == "login":
                strangers.discard(key)
                admission.logged_in(key)
            elif act == "close":
                del open_now[key]
                strangers.discard(key)
                admission.closed(key)
        for key in admission.over(now):
            cut_in_all += 1
            del open_now[key]
            strangers.discard(key)
        counts = admission.counts()
        assert (counts.connections, counts.strangers) == (len(open_now), len(strangers))
        assert sum(counts.refused.values()) == cut_in_all
        assert len(open_now) <= 8
        assert len(strangers) <= 4
        assert all([address for address, _ in open_now.values()].count(one) <= 6 for one in "0123")
        assert all(open_now[key][1] + 10.0 > now for key in strangers)
        assert (admission.next_due() is None) == (not strangers)


def test_the_greediest_address_pays() -> None:
    """Too many without a login: the oldest of the address that has most goes, not the newest comer."""
    admission: Admission[str] = Admission(BOUNDS)
    admission.opened("quiet", "a", 0.0)
    for number in range(3):
        admission.opened(f"greedy {number}", "b", 1.0)
    admission.opened("late", "c", 2.0)
    assert admission.over(2.0) == ["greedy 0"]


def test_who_has_logged_in_stays() -> None:
    """Neither time nor the number of strangers ends a connection that has logged in; too many in all ends new ones."""
    admission: Admission[int] = Admission(ConnectionBounds(strangers=1, login_timeout_s=1.0, total=2))
    for key in (1, 2):
        admission.opened(key, "a", 0.0)
        admission.logged_in(key)
    assert admission.over(1000.0) == []
    admission.opened(3, "b", 1000.0)
    assert admission.over(1000.0) == [3]
    admission.opened(4, "b", 1000.0)
    admission.logged_in(4)
    assert admission.over(1000.0) == [4]
    assert admission.counts().refused["total"] == 2


def test_logs_say_it_once_in_a_while() -> None:
    """An attack doesn't fill the logs: what was closed is summed up."""
    admission: Admission[int] = Admission(ConnectionBounds(strangers=1, login_timeout_s=10.0))
    assert admission.report(0.0) is None
    for key in range(4):
        admission.opened(key, "a", 1.0)
    admission.over(1.0)
    assert admission.report(1.0) == "3 of too many without a login"
    admission.over(11.0)
    assert admission.report(10.0) is None
    assert admission.report(12.0) == "1 without a login in time"
