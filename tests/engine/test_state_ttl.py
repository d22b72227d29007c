"""STATE_TTL: groups that nothing has changed for so long begin anew, as a model of the log says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.streams.stream_kit import StreamKit, unhurried

from penstock.planner.task_plans.stream_plan import WindowsPlan
from penstock.tasks.protocol.messages import Recalculate
from penstock.tasks.window import expiring_groups, group_times, window_pages
from penstock.vnode.store.sorted_keys import TS_MAX

Row = tuple[int, int, int | None, float, str]
"""Its table, time, voltage, current and note."""
KEYS: dict[str, Callable[[Row], str]] = {
    "note": lambda row: row[4], "tbname": lambda row: f"d{row[0]}", "site": lambda row: f"s{row[0] // 2}"}


@dataclass
class Model:
    """What a stream of groups by `key` comes to that lets them go: a function of what each vnode's log says.

    `vnodes`: all that there are, some of which may have no table. `kept`: by group and vnode the rows that are kept of
    it. `changed`: the time of each group's last change.
    """

    key: str
    ttl: int
    vnode_of: Sequence[int]
    vnodes: Sequence[int]
    newest: dict[int, int] = field(default_factory=dict)
    stored: dict[tuple[int, int], Row] = field(default_factory=dict)
    kept: dict[str, dict[int, set[tuple[int, int]]]] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    results: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    let_go: int = 0

    def begin(self, rows: Sequence[Row]) -> None:
        """There are rows before the stream."""
        for vnode in self.vnodes:
            mine = [row for row in rows if self.vnode_of[row[0]] == vnode]
            self.insert(mine)

    def insert(self, rows: Sequence[Row]) -> None:
        """One vnode's log gets a record of rows, each of another table or time."""
        if not rows:
            return
        vnode = self.vnode_of[rows[0][0]]
        self.newest[vnode] = max(self.newest.get(vnode, rows[0][1]), *(row[1] for row in rows))
        rewritten = [row for row in rows if row[:2] in self.stored]
        read_back = {self._group(row) for row in rewritten} | {self._group(self.stored[row[:2]]) for row in rewritten}
        self.stored.update((row[:2], row) for row in rows)
        self._read_back(read_back, vnode)
        added = [row for row in rows if self._group(row) not in read_back]
        for group in dict.fromkeys(map(self._group, added)):
            self._change(group, vnode)
            self.kept[group].setdefault(vnode, set()).update(row[:2] for row in added if self._group(row) == group)
            self._show(group)

    def delete(self, table: int, first: int, last: int) -> None:
        """One vnode's log gets a delete of rows of a table."""
        gone = [key for key in self.stored if key[0] == table and first <= key[1] <= last]
        groups = {self._group(self.stored[key]) for key in gone}
        for key in gone:
            del self.stored[key]
        self._read_back(groups, self.vnode_of[table])

    def recalculate(self) -> None:
        for vnode in self.newest:
            self._read_back({self._group(row) for key, row in self.stored.items() if self.vnode_of[key[0]] == vnode},
                            vnode)

    def end(self) -> None:
        """A checkpoint lets go what is due."""
        for group in list(self.kept):
            self._let_go_if_due(group)

    def _group(self, row: Row) -> str:
        return KEYS[self.key](row)

    def _read_back(self, groups: set[str], vnode: int) -> None:
        for group in groups:
            self._change(group, vnode)
            self.kept[group][vnode] = {key for key, row in self.stored.items()
                                       if self._group(row) == group and self.vnode_of[key[0]] == vnode}
            self._show(group)

    def _change(self, group: str, vnode: int) -> None:
        self._let_go_if_due(group)
        self.kept.setdefault(group, {})
        self.changed[group] = max(self.newest[vnode], self.changed.get(group, self.newest[vnode]))

    def _let_go_if_due(self, group: str) -> None:
        """All vnodes have passed the step of its last change by more steps than make up STATE_TTL."""
        vnodes = [self.vnode_of[int(group[1:])]] if self.key == "tbname" else self.vnodes
        if group not in self.kept or not self.newest.keys() >= set(vnodes):
            return
        step, now = -(-self.ttl // 8), min(self.newest[vnode] for vnode in vnodes)
        if now // step - self.changed[group] // step > -(-self.ttl // step):
            self.let_go += any(self.kept.pop(group).values())
            del self.changed[group]

    def _show(self, group: str) -> None:
        rows = [self.stored[key] for keys in self.kept[group].values() for key in keys]
        values = [row[2] for row in rows if row[2] is not None]
        if rows:
            self.results[group] = len(rows), sum(values) if values else None
        else:
            self.results.pop(group, None)


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60_000), st.one_of(st.none(), st.integers(-5, 5)), st.just(0.5),
              st.sampled_from(["x", "y", "z"])), min_size=1, max_size=5, unique_by=lambda row: row[:2])
#: Times go on, so that groups become due.
ADVANCES = st.tuples(st.integers(0, 3), st.sampled_from(["x", "y", "z"]), st.integers(0, 15_000))
STEPS = st.lists(st.one_of(
    st.tuples(st.sampled_from(["insert", "each"]), ROWS),
    st.tuples(st.just("advance"), ADVANCES), st.tuples(st.just("advance"), ADVANCES),
    st.tuples(st.just("delete"), st.tuples(st.integers(0, 3), st.integers(0, 60_000), st.integers(0, 30_000))),
    st.tuples(st.sampled_from(["run", "kill", "recalculate"]), st.none()),
    st.tuples(st.just("checkpoint"), st.booleans())), min_size=1, max_size=16)
TTLS = st.sampled_from([1, 7, 1_000, 5_000, 10_000, 1 << 50])


def carry_out(kit: StreamKit, model: Model, steps: Sequence[tuple[str, Any]], *, settled: bool) -> None:
    """Does something to stream and model. `settled`: all is processed before more is written."""
    for kind, what in steps:
        match kind:
            case "insert" | "each" | "advance":
                for record in records(model, kind, what):
                    kit.insert(record)
                    model.insert(record)
                    if settled:
                        kit.run()
            case "delete":
                table, first, length = what
                kit.delete([table], first, first + length)
                model.delete(table, first, first + length)
            case "checkpoint":
                kit.run()
                kit.checkpoint(commit=what)
            case "recalculate":
                kit.run()
                kit.post(Recalculate(0, TS_MAX), "source")
                model.recalculate()
                kit.run()
                kit.checkpoint()  # the log doesn't have the order
            case "kill":
                if settled:
                    kit.checkpoint()  # logs may be read in another order once more
                kit.kill()
            case _:
                kit.run()
        if settled:
            kit.run()


def records(model: Model, kind: str, what: Any) -> list[list[Row]]:
    """Returns the rows of a step as records, each of one vnode."""
    if kind == "each":
        return [[row] for row in what]
    if kind == "advance":
        table, note, later = what
        return [[(table, max(model.newest.values(), default=0) + later, 1, 0.5, note)]]
    found = [[row for row in what if model.vnode_of[row[0]] == vnode] for vnode in model.vnodes]
    return [record for record in found if record]


def compared(kit: StreamKit, model: Model) -> None:
    kit.run()
    assert {row["g"]: (row["c"], row["s"]) for row in kit.rows()} == model.results


def opened(tmp_path_factory: pytest.TempPathFactory, key: str, ttl: int, vnodes: int, before: Sequence[Row],
           **changes: Any) -> tuple[StreamKit, Model]:
    query = f"select {key} g, count(*) c, sum(voltage) s from meters group by {key}"
    kit = StreamKit(tmp_path_factory.mktemp("stream"), f"create stream s state_ttl {ttl}a into o as {query}",
                    vnodes=vnodes, before=lambda kit: kit.insert(before) if before else None,
                    settings=unhurried(**changes))
    assert isinstance(kit.plan.computation, WindowsPlan)
    assert not kit.plan.computation.retracts
    model = Model(key, ttl, [child.vgroup_id for child in kit.catalog.child_list], [*kit.vnodes])
    model.begin(before)
    return kit, model


def forgotten(kit: StreamKit) -> int:
    return sum(task.status().size.forgotten_groups or 0 for task in kit.tasks)


@settings(max_examples=times(20, 3_000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, before=st.just([]) | ROWS, key=st.sampled_from(sorted(KEYS)), ttl=TTLS,
       block=st.sampled_from([1, 2, 4, 100]), memory=st.sampled_from([0, 1 << 27]), few=st.booleans())
def test_groups_go_as_the_log_says(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], before: list[Row], key: str, ttl: int, block: int,
    memory: int, few: bool
) -> None:
    """Of one vnode: however the log is cut, through kills and checkpoints, and whether numbers of groups are given
    back (few: also where there are several pages of them)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expiring_groups, "_SPARE_GROUPS", 0)
        if few:
            patch.setattr(group_times, "_CHUNK", 1)
            patch.setattr(window_pages, "PAGE_GROUPS", 1)
        kit, model = opened(tmp_path_factory, key, ttl, 1, before, block_rows_max=block, state_memory_bytes=memory)
        try:
            carry_out(kit, model, steps, settled=False)
            compared(kit, model)
            kit.checkpoint()
            model.end()
            assert forgotten(kit) == model.let_go
            kit.kill()
            compared(kit, model)
        finally:
            kit.close()


@settings(max_examples=times(10, 1_000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, before=st.just([]) | ROWS, ttl=TTLS, vnodes=st.integers(2, 4), block=st.sampled_from([1, 4, 100]))
def test_groups_of_tables_go_as_the_logs_of_their_vnodes_say(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], before: list[Row], ttl: int, vnodes: int, block: int
) -> None:
    """Whatever the others do."""
    kit, model = opened(tmp_path_factory, "tbname", ttl, vnodes, before, block_rows_max=block)
    try:
        carry_out(kit, model, steps, settled=False)
        compared(kit, model)
    finally:
        kit.close()


@settings(max_examples=times(10, 1_000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, key=st.sampled_from(["note", "site"]), ttl=TTLS, vnodes=st.integers(2, 4))
def test_groups_of_many_vnodes_go_once_all_have_passed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], key: str, ttl: int, vnodes: int
) -> None:
    """Where each record is processed before the next one is written, it is known when that is."""
    kit, model = opened(tmp_path_factory, key, ttl, vnodes, [])
    try:
        carry_out(kit, model, steps, settled=True)
        compared(kit, model)
    finally:
        kit.close()


@settings(max_examples=times(10, 1_000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, ttl=TTLS, vnodes=st.integers(2, 4), block=st.sampled_from([1, 4, 100]))
def test_no_group_goes_before_its_time(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], ttl: int, vnodes: int, block: int
) -> None:
    """Of many vnodes, in whatever order their logs are read, through kills: all rows count behind which nothing was
    missing for STATE_TTL, in the order of the times that their vnodes had."""
    kit, model = opened(tmp_path_factory, "site", ttl, vnodes, [], block_rows_max=block)
    try:
        changes: dict[str, list[int]] = {}
        for kind, what in steps:
            if kind in ("run", "kill", "checkpoint"):
                carry_out(kit, model, [(kind, what)], settled=False)
            if kind not in ("insert", "each", "advance"):
                continue
            for written in records(model, kind, what):
                record = [row for row in written if row[:2] not in model.stored]
                if record:
                    kit.insert(record)
                model.insert(record)
                for row in record:
                    changes.setdefault(KEYS["site"](row), []).append(model.newest[model.vnode_of[row[0]]])
        kit.run()
        found = {row["g"]: row["c"] for row in kit.rows()}
        assert found.keys() == changes.keys()
        for group, moments in changes.items():
            moments.sort()
            first = max((n for n in range(1, len(moments)) if moments[n] - moments[n - 1] > ttl), default=0)
            assert len(moments) - first <= found[group] <= len(moments)
    finally:
        kit.close()


@pytest.mark.parametrize("looks", [True, False])
def test_a_delete_before_a_row_has_no_group_read_back(tmp_path_factory: pytest.TempPathFactory, *, looks: bool) -> None:
    """Though the row lies in its range, and both are read at once or one after the other."""
    kit, model = opened(tmp_path_factory, "note", 10_000, 1, [])
    try:
        carry_out(kit, model, [
            ("insert", [(0, 0, 1, 0.5, "x")]), ("insert", [(1, 20_000, 1, 0.5, "y")]), ("run", None),
            *[("delete", (0, 20_000, 1_000))] * 2,  # of keys, and of a range
            *([("run", None)] if looks else []),
            ("insert", [(0, 20_001, 1, 0.5, "x")])], settled=False)
        compared(kit, model)
        assert model.results["x"] == (1, 1)
    finally:
        kit.close()


@pytest.mark.parametrize("memory", [0, 1 << 27])
def test_memory_of_groups_that_have_gone_is_given_back(tmp_path_factory: pytest.TempPathFactory, memory: int) -> None:
    """Of ever new groups only the last are kept, through checkpoints and kills."""
    kit, model = opened(tmp_path_factory, "note", 1_000, 1, [], state_memory_bytes=memory)
    try:
        sizes = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(expiring_groups, "_SPARE_GROUPS", 16)
            patch.setattr(group_times, "_CHUNK", 8)
            patch.setattr(window_pages, "PAGE_GROUPS", 8)
            for number in range(20):
                rows = [(0, 10_000 * number + n, 1, 0.5, f"n{number}-{n}") for n in range(64)]
                kit.insert(rows)
                model.insert(rows)
                kit.run()
                kit.checkpoint()
                if number % 4 == 2:
                    kit.kill()
                (task,) = (task for task in kit.tasks if task.id.operator == "agg")
                sizes.append(len(task._groups))  # type: ignore[attr-defined]
        assert max(sizes) <= 128
        assert (forgotten(kit), len(kit.rows())) == (19 * 64, 20 * 64)
        compared(kit, model)
    finally:
        kit.close()
