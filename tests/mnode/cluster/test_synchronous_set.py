"""Who is in the synchronous set, and what is acknowledged: by all that count, in the old list and in the new one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.mnode.cluster.cluster_messages import Life
from penstock.mnode.cluster.log_shipping import CopyProgress
from penstock.mnode.cluster.synchronous_set import (
    LogReplicas,
    MemberWatch,
    SetSettings,
    SynchronousSet,
    SynchronousSetKeeper,
    with_members,
)

A, B, C = Life(1, 10), Life(2, 20), Life(3, 30)
SETTINGS = SetSettings(silent_after_s=3.0, behind_after_s=8.0)
TWO, THREE = LogReplicas(2, 2), LogReplicas(3, 2)


def keeper(*members: Life, complete: int = 2, began_at: float = 0.0) -> SynchronousSetKeeper:
    return SynchronousSetKeeper(A, SynchronousSet(members, complete), SETTINGS, began_at)


def watch(life: Life, now: float, *, ends: dict[int, int] | None = None, **logs: int) -> MemberWatch:
    """Returns a standby that was heard now, and has so much of each log (l1=5)."""
    one = MemberWatch(life, 1, now)
    one.progress = {int(name[1:]): CopyProgress(end, end) for name, end in logs.items()}
    one.compare(now, ends or {log: progress.written for log, progress in one.progress.items()})
    return one


def have(**ends: tuple[int, int]) -> dict[Life, CopyProgress]:
    return {{"a": A, "b": B, "c": C}[name]: CopyProgress(*end) for name, end in ends.items()}


def test_a_record_is_acknowledged_by_as_many_as_the_database_says() -> None:
    """The first n nodes of the list count, the others don't; at WAL_LEVEL 2 only what is on disk for good."""
    kept = keeper(A, B, C)
    progress = have(a=(9, 8), b=(7, 6), c=(5, 4))
    assert kept.acknowledged(LogReplicas(1, 1), progress) == 9
    assert kept.acknowledged(LogReplicas(1, 2), progress) == 8
    assert kept.acknowledged(LogReplicas(2, 1), progress) == 7
    assert kept.acknowledged(LogReplicas(2, 2), progress) == 6
    assert kept.acknowledged(LogReplicas(3, 2), progress) == 4


def test_too_few_nodes_acknowledge_nothing_unless_the_database_says_so() -> None:
    """A database waits for its replicas, or goes on with fewer by name."""
    alone = keeper(A)
    assert alone.acknowledged(TWO, have(a=(9, 9))) is None
    assert alone.acknowledged(LogReplicas(2, 2, with_fewer=True), have(a=(9, 9))) == 9


def test_nodes_that_may_take_over_always_count() -> None:
    """Until the coordinator knows that only two nodes must have all, three have."""
    assert keeper(A, B, C, complete=3).acknowledged(TWO, have(a=(9, 9), b=(8, 8), c=(2, 2))) == 2


def test_a_silent_member_leaves_and_another_takes_its_place() -> None:
    """Both lists count until the coordinator has the new one."""
    kept = keeper(A, B)
    watches = [watch(B, 0.0, l1=5), watch(C, 4.0, l1=5)]
    assert kept.change(3.0, watches, {1: TWO}, {1: 5}) is None
    change = kept.change(4.0, watches, {1: TWO}, {1: 5})
    assert change == SynchronousSet((A, C), 2)
    progress = have(a=(9, 9), b=(5, 5), c=(8, 8))
    assert kept.acknowledged(TWO, progress) == 5
    assert kept.change(5.0, watches, {1: TWO}, {1: 5}) is None, "one change at a time"
    kept.written(change)
    assert kept.acknowledged(TWO, progress) == 8


def test_a_member_that_lags_leaves() -> None:
    """It is there, but hasn't had for long what the active had; one that catches up with each end stays."""
    kept = keeper(A, B)
    slow = watch(B, 0.0, l1=5)
    for second in range(1, 9):
        slow.heard(float(second))
        slow.compare(float(second), {1: 5 + second})
        assert kept.change(float(second), [slow], {1: TWO}, {1: 5}) is None
    slow.heard(10.0)
    assert kept.change(10.0, [slow], {1: TWO}, {1: 5}) == SynchronousSet((A,), 2)


def test_who_lacks_what_may_be_acknowledged_does_not_join() -> None:
    """To take over one must have all of it, of every log with replicas, at the database's WAL_LEVEL."""
    kept = keeper(A)
    logs = {0: TWO, 1: TWO, 2: LogReplicas(1, 1)}
    assert kept.change(1.0, [watch(B, 1.0, l0=3, l1=4)], logs, {0: 3, 1: 5, 2: 9}) is None
    assert kept.change(1.0, [watch(B, 1.0, l1=5)], logs, {0: 3, 1: 5}) is None
    assert kept.change(1.0, [watch(B, 1.0, l0=3, l1=5)], logs, {0: 3, 1: 5}) == SynchronousSet((A, B), 2)


def test_members_stay_when_a_new_active_has_not_heard_of_them_yet() -> None:
    """They have all that was acknowledged; time is given from when the active has begun."""
    kept = keeper(A, B, C, complete=3, began_at=100.0)
    assert kept.change(102.0, [], {1: THREE}, {1: 50}) is None
    assert kept.change(104.0, [], {1: THREE}, {1: 50}) == SynchronousSet((A,), 3)


def test_who_says_nothing_at_all_leaves_sooner() -> None:
    """After a takeover that is the node that was active before; one that has spoken is given its time."""
    kept = SynchronousSetKeeper(A, SynchronousSet((A, B, C), 3), SetSettings(first_word_s=1.0), 100.0)
    heard = [watch(C, 100.2, l1=50)]
    assert kept.change(100.9, heard, {1: THREE}, {1: 50}) is None
    assert kept.change(101.1, heard, {1: THREE}, {1: 50}) == SynchronousSet((A, C), 3)


def test_who_was_silent_before_leaves_when_another_has_all() -> None:
    """And not before: until then it is one of two that have all, should it come back and the active be lost."""
    kept = SynchronousSetKeeper(A, SynchronousSet((A, B, C), 2), SetSettings(first_word_s=1.0), 100.0, [B])
    assert kept.change(100.1, [], {1: TWO}, {1: 50}) == SynchronousSet((A, B), 2)
    kept.under_way = None
    assert kept.change(100.2, [watch(C, 100.2, l1=49)], {1: TWO}, {1: 50}) == SynchronousSet((A, B), 2)
    kept.under_way = None
    assert kept.change(100.3, [watch(C, 100.3, l1=50)], {1: TWO}, {1: 50}) == SynchronousSet((A, C), 2)
    kept.under_way = None
    back = [watch(B, 100.3, l1=50), watch(C, 100.3, l1=50)]
    assert kept.change(100.4, back, {1: TWO}, {1: 50}) == SynchronousSet((A, B), 2), "it has spoken"


def test_more_that_may_take_over_must_prove_themselves() -> None:
    """If all databases have three replicas, the third node may take over once it has all."""
    kept = keeper(A, B, C, complete=2)
    behind = [watch(B, 1.0, l1=5), watch(C, 1.0, ends={1: 4}, l1=4)]
    assert kept.change(1.0, behind, {1: THREE}, {1: 5}) == SynchronousSet((A, B), 3)
    kept = keeper(A, B, C, complete=2)
    level = [watch(B, 1.0, l1=5), watch(C, 1.0, l1=5)]
    assert kept.change(1.0, level, {1: THREE}, {1: 5}) == SynchronousSet((A, B, C), 3)


def test_who_takes_over_comes_first() -> None:
    """The others keep their order; another life of the same node is no member."""
    assert with_members(SynchronousSet((A, B, C), 2), B).members == (B, A, C)
    assert with_members(SynchronousSet((A, B, C), 2), Life(2, 21)).members == (Life(2, 21), A, C)


lives = st.sampled_from([A, B, C])


moves = st.sampled_from(["write", "copy", "hear", "time", "decide", "decided", "levels"])


@given(steps=st.lists(st.tuples(moves, lives, st.integers(1, 3)), max_size=80))
def test_who_may_take_over_has_everything_acknowledged(steps: list[tuple[str, Life, int]]) -> None:
    """Whatever comes in which order: each node that may take over has all that was acknowledged."""
    kept, now, end = keeper(A), 0.0, 0
    logs = {1: TWO}
    has, heard, acknowledged = {A: 0, B: 0, C: 0}, {B: 0.0, C: 0.0}, 0
    watches = {life: MemberWatch(life, 1, 0.0) for life in heard}
    for step, life, number in steps:
        match step:
            case "write":
                end += number
                has[A] = end
            case "copy" if life != A:
                has[life] = min(end, has[life] + number)
            case "hear" if life != A:
                watches[life].progress[1] = CopyProgress(has[life], has[life])
                watches[life].heard(now)
            case "time":
                now += number
            case "decide":
                for one in watches.values():
                    one.compare(now, {1: end})
                kept.change(now, watches.values(), logs, {1: acknowledged})
            case "decided" if kept.under_way is not None:
                kept.written(kept.under_way)
            case "levels":
                logs = {1: LogReplicas(max(number, 2), 2)}
        told = {one.life: one.progress.get(1, CopyProgress()) for one in watches.values()} | {A: CopyProgress(end, end)}
        acknowledged = max(acknowledged, kept.acknowledged(logs[1], told) or 0)
        for might in (kept.current, kept.under_way or kept.current):
            for member in (A, B, C):
                assert not might.may_take_over(member) or has[member] >= acknowledged
