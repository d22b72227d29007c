"""Orders that several threads give at once: prepared one by one, finished together, and none waits for a slow one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from kits.basics.waiting import wait_until

from penstock.common.clock import ManualClock, SystemClock
from penstock.common.errors import StorageError
from penstock.mnode.streams.gathered_orders import GatheredOrders

_SIZE_MAX = 100


class StandingClock(ManualClock):
    """A clock that stands still, and knows which threads have looked at it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def monotonic(self) -> float:
        self.threads.add(threading.get_ident())
        return super().monotonic()


class Shop:
    """What orders are prepared and finished by. An order may wait for something, and fail in either."""

    def __init__(self, clock: ManualClock | SystemClock) -> None:
        self.finished: list[Sequence[str]] = []
        self.waits: dict[str, Callable[[], object]] = {}
        self.unprepared: set[str] = set()
        self.unfinished: set[str] = set()
        self.size = 1
        self.orders: GatheredOrders[str, str] = GatheredOrders(
            clock, self.prepare, self.finish, lambda prepared: self.size, _SIZE_MAX)

    def prepare(self, order: str) -> str:
        self.waits.get(order, lambda: None)()
        if order in self.unprepared:
            raise ValueError(order)
        return f"{order}!"

    def finish(self, some: Sequence[str]) -> list[Exception | None]:
        self.finished.append(some)
        return [StorageError(one) if one in self.unfinished else None for one in some]


def while_first_waits(shop: Shop, clock: StandingClock, pool: ThreadPoolExecutor) -> list[Future[str]]:
    """Gives the orders a to d; b, c and d are there before a is prepared."""
    shop.waits["a"] = lambda: wait_until(lambda: len(clock.threads) == 4)
    first = pool.submit(shop.orders.perform, "a")
    wait_until(lambda: clock.threads)
    return [first, *(pool.submit(shop.orders.perform, one) for one in "bcd")]


def test_an_order_alone_is_finished_alone() -> None:
    """It waits for nobody."""
    shop = Shop(ManualClock())
    assert [shop.orders.perform("a"), shop.orders.perform("b")] == ["a!", "b!"]
    assert shop.finished == [["a!"], ["b!"]]


def test_what_comes_meanwhile_is_finished_together() -> None:
    """While one is prepared."""
    clock = StandingClock()
    shop = Shop(clock)
    with ThreadPoolExecutor(4) as pool:
        answers = while_first_waits(shop, clock, pool)
        assert [answer.result() for answer in answers] == ["a!", "b!", "c!", "d!"]
    assert [sorted(some) for some in shop.finished] == [["a!", "b!", "c!", "d!"]]


def test_no_more_waits_to_be_finished_than_may_be_kept() -> None:
    """Then others are prepared while that is finished."""
    clock = StandingClock()
    shop = Shop(clock)
    shop.size = _SIZE_MAX // 2
    with ThreadPoolExecutor(4) as pool:
        for answer in while_first_waits(shop, clock, pool):
            answer.result()
    assert [len(some) for some in shop.finished] == [2, 2]


def test_each_order_fails_alone() -> None:
    """Before it is finished with others, or then."""
    clock = StandingClock()
    shop = Shop(clock)
    shop.unprepared, shop.unfinished = {"b"}, {"c!"}
    with ThreadPoolExecutor(4) as pool:
        a, b, c, d = while_first_waits(shop, clock, pool)
        assert (a.result(), d.result()) == ("a!", "d!")
        with pytest.raises(ValueError, match="b"):
            b.result()
        with pytest.raises(StorageError, match="c!"):
            c.result()
    assert [sorted(some) for some in shop.finished] == [["a!", "c!", "d!"]]


def test_what_cannot_be_finished_fails_for_all() -> None:
    """Since nobody knows whose fault it is."""
    clock = StandingClock()
    shop = Shop(clock)

    def finish(some: Sequence[str]) -> list[Exception | None]:
        raise ValueError(len(some))

    shop.orders = GatheredOrders(clock, shop.prepare, finish, lambda prepared: 1, _SIZE_MAX)
    with ThreadPoolExecutor(4) as pool:
        for answer in while_first_waits(shop, clock, pool):
            with pytest.raises(ValueError, match="4"):
                answer.result()


def test_a_slow_order_delays_no_other() -> None:
    """Neither those that come behind it, nor those that were prepared before it by the same thread."""
    shop = Shop(SystemClock())
    slow, others = threading.Event(), threading.Event()
    shop.waits = {"a": others.wait, "slow": slow.wait}
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(shop.orders.perform, "a")
        held = pool.submit(shop.orders.perform, "slow")
        answers = [pool.submit(shop.orders.perform, one) for one in "bc"]
        others.set()
        assert [answer.result() for answer in (first, *answers)] == ["a!", "b!", "c!"]
        assert pool.submit(shop.orders.perform, "d").result() == "d!"
        assert not held.done()
        slow.set()
        assert held.result() == "slow!"
    assert sorted(one for some in shop.finished for one in some) == ["a!", "b!", "c!", "d!", "slow!"]
