"""Simulated clusters of three: whatever nodes, disks, network and ZooKeeper do, nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import profile, times
from kits.cluster.memory_checkpoints import MemoryShelf
from simulation.nodes.cluster_run import ClusterRun, run_cluster

from penstock.mnode.cluster.checkpoint_taking import CheckpointTaking
from penstock.mnode.cluster.lease import Lease
from penstock.mnode.cluster.log_following import LogFollowing
from penstock.mnode.cluster.synchronous_set import LogReplicas, SynchronousSet, SynchronousSetKeeper

_CHUNKS = 4
SEEDS = times(12, 20_000)


@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_clusters_lose_nothing_that_was_acknowledged(chunk: int) -> None:
    """One acknowledges at a time, readers see what was acknowledged, and the cluster is whole once faults end."""
    problems = []
    for seed in range(chunk * SEEDS // _CHUNKS, (chunk + 1) * SEEDS // _CHUNKS):
        outcome = run_cluster(seed)
        if outcome.problem is not None:
            problems.append(f"seed {seed}: {outcome.problem}")
    assert not problems, "\n".join(problems)


def test_a_seed_gives_the_same_history_every_time() -> None:
    """What fails can be looked at again."""
    assert run_cluster(3) == run_cluster(3)


@pytest.mark.parametrize("seed", range(3))
def test_a_dead_node_is_not_waited_for_after_its_lease(seed: int) -> None:
    """With three nodes a row is acknowledged by two others as soon as one of them is active."""
    run = ClusterRun(seed)
    world = run.world
    world.bad_network = False
    world.replicas = dict.fromkeys(world.replicas, LogReplicas(2, 2))
    for node in world.nodes.values():
        world.start(node)
    run._write()
    world.run_until(10.0)
    (dead,) = [node for node in world.nodes.values() if node.process is not None and node.process.active is not None]
    world.kill(dead)
    before = len(run.truth[1])
    world.run_until(10.0 + 6.0)  # a lease has 4 s, and candidates 0.6 s and a second's turns
    assert len(run.truth[1]) > before + 3


def _acknowledge_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SynchronousSetKeeper, "needed", lambda self, wanted: frozenset({self._active}))


def _let_all_take_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SynchronousSet, "may_take_over", lambda self, life: True)


def _forget_changes_under_way(patch: pytest.MonkeyPatch) -> None:
    asked = SynchronousSetKeeper.change

    def change(self: SynchronousSetKeeper, *given: object) -> SynchronousSet | None:
        wanted = asked(self, *given)  # type: ignore[arg-type]
        if wanted is not None:
            self.current = wanted
        return wanted

    patch.setattr(SynchronousSetKeeper, "change", change)


def _let_those_join_that_lack_something(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("penstock.mnode.cluster.synchronous_set._has_all", lambda watch, logs, ends: watch is not None)


def _believe_in_the_lease_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "valid", lambda self, now: True)


def _cut_nothing(patch: pytest.MonkeyPatch) -> None:
    cut = LogFollowing._cut

    def follow_on(self: LogFollowing, now: float, version: int, bounds: object) -> None:
        cut(self, now, self._stored.bounds().written, bounds)  # type: ignore[arg-type]

    patch.setattr(LogFollowing, "_cut", follow_on)


def _begin_later_than_checkpoints(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckpointTaking, "may_put", lambda self, now, log, begin: True)


def _keep_checkpoints_that_have_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryShelf, "part", lambda self, log, version: None)


#: Those that are found within a few seeds; the others take some hundred.
DEFECTS = [_acknowledge_alone, _let_all_take_over, _cut_nothing]
if profile() == "nightly":
    DEFECTS += [_forget_changes_under_way, _let_those_join_that_lack_something, _believe_in_the_lease_for_ever,
                _begin_later_than_checkpoints, _keep_checkpoints_that_have_more]


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(
        defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation would notice: each of these rules matters."""
    defect(monkeypatch)
    assert any(run_cluster(seed).problem is not None for seed in range(1000))
