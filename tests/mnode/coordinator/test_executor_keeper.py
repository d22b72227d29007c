"""When Spark is asked for more executors, and when it gets some back."""

from __future__ import annotations

from penstock.mnode.coordinator.executor_keeper import ExecutorKeeper, Scale
from penstock.tasks.worker.spark_executors import Executor, Executors


def cluster(*busy: int) -> Executors:
    """Returns executors of four slots each, of which so many are taken."""
    return Executors(tuple(Executor(str(place), "h", 4, taken) for place, taken in enumerate(busy)), elastic=True)


def test_an_executor_that_hosts_nothing_for_long_is_given_back() -> None:
    """Its idle time counts from when it hosted something last; the others stay."""
    keeper = ExecutorKeeper(60)
    assert keeper.decide(cluster(2, 0, 1), set(), 0, True, 0.0) is None
    assert keeper.decide(cluster(2, 1, 0), set(), 0, True, 50.0) is None
    assert keeper.decide(cluster(2, 0, 0), set(), 0, True, 70.0) is None
    assert keeper.decide(cluster(2, 0, 0), set(), 0, True, 110.0) == Scale(2, ("2",))
    remaining = keeper.remaining(cluster(2, 0, 0))
    assert [executor.id for executor in remaining.all] == ["0", "1"]
    assert keeper.decide(remaining, set(), 0, True, 130.0) == Scale(1, ("1",))
    assert [executor.id for executor in keeper.remaining(cluster(2, 0, 0)).all] == ["0"]


def test_what_spark_could_not_be_asked_for_is_decided_anew() -> None:
    """Nothing is given back, and nothing more comes, because an order was lost."""
    keeper = ExecutorKeeper(0)
    scale = keeper.decide(cluster(0), set(), 0, True, 0.0)
    assert scale == Scale(0, ("0",))
    keeper.failed(scale)
    assert keeper.remaining(cluster(0)) == cluster(0)
    assert keeper.decide(cluster(4), {"0"}, 1, True, 1.0) == Scale(2)
    keeper.failed(Scale(2))
    assert keeper.decide(cluster(4), {"0"}, 1, True, 3.0) == Scale(2)


def test_an_executor_with_workers_stays_whatever_spark_counts() -> None:
    """Its count of tasks may be late."""
    keeper = ExecutorKeeper(60)
    for now in (0.0, 100.0):
        assert keeper.decide(cluster(0), {"0"}, 0, True, now) is None
    assert keeper.decide(cluster(0), set(), 0, True, 101.0) is None
    assert keeper.decide(cluster(0), set(), 0, True, 161.0) == Scale(0, ("0",))


def test_workers_on_their_way_keep_executors() -> None:
    """While a job starts nobody knows where its workers will be, and idle time begins anew."""
    keeper = ExecutorKeeper(60)
    keeper.decide(cluster(1, 0), set(), 0, True, 0.0)
    assert keeper.decide(cluster(1, 0), set(), 0, False, 61.0) is None
    assert keeper.decide(cluster(1, 0), set(), 0, True, 62.0) is None
    assert keeper.decide(cluster(1, 0), set(), 0, True, 122.0) == Scale(1, ("1",))


def test_missing_slots_bring_executors_once() -> None:
    """As many as hold the missing slots, asked for once; more only when more are missing."""
    keeper = ExecutorKeeper(60)
    assert keeper.decide(cluster(4, 4), set(), 5, True, 0.0) == Scale(4)
    assert keeper.decide(cluster(4, 4), set(), 5, True, 2.0) is None
    assert keeper.decide(cluster(4, 4), set(), 9, True, 4.0) == Scale(5)
    assert keeper.decide(cluster(4, 4, 0, 0, 0), set(), 0, True, 6.0) is None
    assert keeper.decide(cluster(4, 4, 4, 4, 4), set(), 1, True, 8.0) == Scale(6)


def test_the_first_executors_are_asked_for_without_knowing_their_size() -> None:
    """One for each missing slot; once one has been seen, as many as are needed."""
    keeper = ExecutorKeeper(60)
    assert keeper.decide(cluster(), set(), 2, True, 0.0) == Scale(2)
    keeper.decide(cluster(0), set(), 0, True, 2.0)
    assert keeper.decide(cluster(), set(), 6, True, 4.0) == Scale(2)


def test_a_local_spark_has_one_executor_for_good() -> None:
    """There is nobody to ask."""
    keeper = ExecutorKeeper(0)
    local = Executors((Executor("driver", "h", 4, 0),), elastic=False)
    assert keeper.decide(local, set(), 0, True, 0.0) is None
    assert keeper.decide(local, set(), 3, True, 1.0) is None
