"""The fingerprint of saved state: what another plan has saved is never read by its place, and never lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kits.engines.sandboxes import T0, TestBed
from kits.streams.stream_kit import Catalog

from penstock.common.errors import StateLayoutError
from penstock.mnode.catalog import catalog as catalogs
from penstock.mnode.coordinator import stored_plan
from penstock.planner.streams import stream_planner
from penstock.planner.streams.stream_planner import plan_stream
from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateStream
from penstock.tasks.state.state_layout import layout_of

QUERY = "SELECT _wstart ts, sum(v) sv, sum(a) sa FROM meters PARTITION BY tbname INTERVAL(10s)"
INTO = "CREATE STREAM s TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 INTO o AS"


def open_bed(root: Path, backup: Path | None = None) -> TestBed:
    bed = TestBed(directory=root, config={} if backup is None else {
        "checkpointBackupDir": str(backup), "checkpointBackupInterval": "0s"})
    if root.joinpath("vnode").is_dir() and list(root.glob("streams/*")):
        bed.execute("USE d")
    return bed


def make(root: Path, backup: Path | None = None) -> None:
    with open_bed(root, backup) as bed:
        bed.all("CREATE DATABASE d VGROUPS 1", "USE d",
                "CREATE STABLE meters (ts TIMESTAMP, v INT, a INT) TAGS (g INT)",
                "CREATE TABLE d0 USING meters TAGS (0)", f"{INTO} {QUERY}",
                f"INSERT INTO d0 VALUES ({T0}, 1, 100)")
        bed.execute("CHECKPOINT STREAM s")


def state_of(bed: TestBed) -> tuple[str, str]:
    ((state, reason),) = bed.rows("SELECT state, reason FROM information_schema.ins_streams")
    return state, reason


def order_otherwise(patch: pytest.MonkeyPatch) -> None:
    """Has the planner put aggregates in another order, as another version of it might."""
    windowed = stream_planner.windowed

    def with_calls_reversed(stream: Any, aggregation: Any, *args: Any) -> Any:
        aggregation.columns = dict(reversed(aggregation.columns.items()))
        return windowed(stream, aggregation, *args)

    patch.setattr(stream_planner, "windowed", with_calls_reversed)


def other_version(patch: pytest.MonkeyPatch) -> None:
    """Has the engine be of a version that can't read the plans of this one, and orders aggregates otherwise."""
    patch.setattr(stored_plan, "_FORMAT", stored_plan._FORMAT + 1)
    order_otherwise(patch)


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.glob("streams/*/*/*")}


def test_a_restart_deploys_what_is_stored(tmp_path: Path) -> None:
    """Nothing is planned then, so it doesn't matter how this version would plan the statement."""
    make(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.mnode.streams.stream_planning.plan_stream", None)
        with open_bed(tmp_path) as bed:
            bed.execute(f"INSERT INTO d0 VALUES ({T0 + 1}, 2, 200)")
            assert state_of(bed) == ("RUNNING", None)
            assert bed.rows("SELECT sv, sa FROM o") == [(3, 300)]


@pytest.mark.parametrize("kept", [
    lambda plan: plan.replace('{"format":', '{"format":9'),
    lambda plan: plan.replace('"class":"', '"class":"Lost', 1)], ids=["format", "class"])
def test_what_cannot_be_read_is_planned_again(tmp_path: Path, kept: Callable[[Any], Any]) -> None:
    """A plan of another form: state is read if the plan of today lays it out alike."""
    make(tmp_path)
    catalog = catalogs.Catalog(tmp_path / "catalog")
    (stream,) = catalog.streams.all()
    catalog.streams._update(stream.id, plan=kept(stream.plan))
    catalog.close()
    with open_bed(tmp_path) as bed:
        bed.execute(f"INSERT INTO d0 VALUES ({T0 + 1}, 2, 200)")
        assert state_of(bed) == ("RUNNING", None)
        assert bed.rows("SELECT sv, sa FROM o") == [(3, 300)]
        assert bed.engine.catalog.streams.all()[0].plan == stream.plan


def test_what_is_altered_is_not_laid_out_anew(tmp_path: Path) -> None:
    """Rates change whatever this version makes of the statement; what is planned again must fit the state."""
    make(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        order_otherwise(patch)
        with open_bed(tmp_path) as bed:
            with pytest.raises(StateLayoutError, match="another layout"):
                bed.execute("ALTER STREAM s SET DELETE_MARK 9d")
            bed.execute("ALTER STREAM s SET SINK_CALLS 7")
            bed.execute(f"INSERT INTO d0 VALUES ({T0 + 1}, 2, 200)")
    with open_bed(tmp_path) as bed:
        bed.run()
        assert bed.rows("SELECT sv, sa FROM o") == [(3, 300)]
        stream = bed.engine.catalog.streams.all()[0]
        assert bed.engine.streams.reports.snapshot().infos[stream.id].rates.sink_calls_per_second == 7
        bed.execute("ALTER STREAM s SET DELETE_MARK 9d")


def test_state_that_another_plan_saved_is_not_read(tmp_path: Path) -> None:
    """The stream is MISMATCHED and says what to do; state and results stay, and the version that saved them goes on."""
    make(tmp_path)
    before = files(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        other_version(patch)
        with open_bed(tmp_path) as bed:
            bed.execute(f"INSERT INTO d0 VALUES ({T0 + 1}, 2, 200)")
            state, reason = state_of(bed)
            assert state == "MISMATCHED"
            assert "saved with another layout" in reason
            assert "CREATE OR REPLACE STREAM" in reason
            assert bed.rows("SELECT sv, sa FROM o") == [(1, 100)]
    assert files(tmp_path) == before
    with open_bed(tmp_path) as bed:
        bed.run()
        assert state_of(bed) == ("RUNNING", None)
        assert bed.rows("SELECT sv, sa FROM o") == [(3, 300)]


def test_the_stream_can_be_computed_anew(tmp_path: Path) -> None:
    """CREATE OR REPLACE STREAM is the way out, as the reason says."""
    make(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        other_version(patch)
        with open_bed(tmp_path) as bed:
            bed.execute(f"INSERT INTO d0 VALUES ({T0 + 1}, 2, 200)")
            bed.execute(INTO.replace("CREATE", "CREATE OR REPLACE") + f" {QUERY}")
            bed.run()
            assert state_of(bed) == ("RUNNING", None)
            assert bed.rows("SELECT sv, sa FROM o") == [(3, 300)]


def test_a_backup_of_another_plan_is_not_read_either(tmp_path: Path) -> None:
    """What comes from a copy of a checkpoint is compared before it is used."""
    root, backup = tmp_path / "data", tmp_path / "backup"
    root.mkdir()
    make(root, backup)
    for path in root.glob("streams/*/checkpoints/*"):
        path.write_bytes(b"damaged")
    with pytest.MonkeyPatch.context() as patch:
        other_version(patch)
        with open_bed(root, backup) as bed:
            bed.run()
            state, reason = state_of(bed)
            assert (state, "saved with another layout" in reason) == ("MISMATCHED", True)


def plan_of(query: str, options: str = "trigger at_once") -> StreamPlan:
    statement = parse_one(f"create stream s {options} into o as {query}")
    assert isinstance(statement, CreateStream)
    return plan_stream(statement, Catalog(2, 3), Session("p", "UTC", 0))


BASE = "select _wstart, sum(voltage) v, sum(current) p from meters partition by site, tbname interval(10s)"
OTHERS = [
    BASE.replace("sum(voltage)", "sum(current)").replace("sum(current) p", "sum(voltage) p"),
    BASE.replace("10s", "20s"), BASE.replace("site, tbname", "tbname, site"),
    BASE.replace("sum(voltage)", "avg(voltage)"),
    BASE.replace("interval(10s)", "session(ts, 10s)"), BASE.replace("interval(10s)", "interval(10s) sliding(5s)"),
    BASE.replace("sum(voltage)", "first(voltage)"), BASE.replace("partition by site, tbname", "partition by site"),
]


@pytest.mark.parametrize("other", OTHERS)
def test_what_decides_how_bytes_are_read_changes_the_fingerprint(other: str) -> None:
    """Keys, aggregates, their order, and windows."""
    assert layout_of(plan_of(other)) != layout_of(plan_of(BASE))


ALTERED: dict[str, Callable[[StreamPlan], StreamPlan]] = {
    "policies": lambda plan: replace(
        plan, policies=replace(plan.policies, delete_mark=5, guarantee="at_least_once", watermark=7)),
    "period": lambda plan: replace(plan, computation=replace(plan.computation, period_ms=5)),
}


@pytest.mark.parametrize("what", ALTERED)
def test_what_only_says_when_does_not(what: str) -> None:
    """What ALTER STREAM may change leaves the state readable."""
    assert layout_of(ALTERED[what](plan_of(BASE))) == layout_of(plan_of(BASE))
