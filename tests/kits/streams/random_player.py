"""Plays a random history through its streams in one thread, and compares each with its model and the batch query."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from kits.streams.failing_functions import SOUND
from kits.streams.kit_verdict import ScannedRows, backend, source_rows, verify_kit
from kits.streams.random_streams import Answer, History, Key, Row, Step, Stream
from kits.streams.stream_kit import Store, StreamKit

from penstock.mnode.query.query_runner import OpenQuery
from penstock.planner.logical.operators import Scan
from penstock.planner.query.select import plan_query
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import Select
from penstock.tasks.protocol.deployment import TaskSettings

IDLE_S, DELAY_S, RECALCULATE_S = 3, 5, 600


class Player:
    """A history's store and its streams. `play` runs all of it; `close` ends what is left."""

    def __init__(self, root: Path, history: History) -> None:
        self.history = history
        self.schema = history.schema
        self.root = root
        self.store = Store(root, self.schema.catalog([SOUND]))
        self.kits: list[tuple[Stream, StreamKit, dict[int, int]]] = []
        self.closed_tables = {child.name: child.vgroup_id for child in self.store.catalog.child_list}
        #: how often streams were verified, and refused
        self.verdicts: Counter[str] = Counter()

    def play(self) -> None:
        """Carries out all steps; raises AssertionError with the stream's SQL where an answer is wrong."""
        for stream in self.history.streams:
            if not stream.history:
                self._create(stream)
        for step in self.history.before:
            self._step(step)
        for stream in self.history.streams:
            if stream.history:
                self._create(stream)
        for step in self.history.after:
            self._step(step)
        self._compare_batch()

    def close(self) -> None:
        for _, kit, _ in self.kits:
            kit.close()
        self.store.close()

    def _create(self, stream: Stream) -> None:
        settings = TaskSettings(
            sink_bytes_per_second=0, sink_calls_per_second=0, state_map_bytes=1 << 26, idle_timeout_s=IDLE_S - 1,
            block_rows_max=stream.block_rows, state_memory_bytes=stream.memory)
        kit = StreamKit(self.root / str(len(self.kits)), stream.sql, store=self.store, settings=settings,
                        time_zone=self.schema.zone)
        newest: dict[int, int] = {}
        for row in self.rows():
            self._saw(stream, newest, row["tbname"], row["ts"])
        self.kits.append((stream, kit, newest))

    def _saw(self, stream: Stream, newest: dict[int, int], table: str, ts: int) -> None:
        """Notes the newest time that a stream has been given, per vnode."""
        if stream.table in ("meters", table):
            vgroup = self.closed_tables[table]
            newest[vgroup] = max(ts, newest.get(vgroup, ts))

    # -- steps -----------------------------------------------------------------------------------------------

    def _step(self, step: Step) -> None:
        kind, what = step
        match kind:
            case "insert":
                self._insert(what)
            case "each":
                for row in what:
                    self._insert([row])
            case "partial":
                width = 4 if self.schema.keyed else 3
                self._insert([row[:width] for row in what])
            case "delete":
                tables, first, length = what
                self.store.delete(tables, first, first + length)
            case "retag":
                self.store.retag(*what)
            case "renew":
                table, tags = what
                if all(stream.table != f"d{table}" for stream in self.history.streams):
                    self.store.renew(table, tags)
            case "look":
                self._look()
            case _:
                for stream, kit, _ in self.kits:
                    _about(stream, lambda kit=kit: _interrupt(kit, kind, what))

    def _insert(self, rows: Sequence[tuple[Any, ...]]) -> None:
        names = [column.name for column in self.schema.columns[1:len(rows[0]) - 1]]
        self.store.insert(rows, names)
        for stream, _, newest in self.kits:
            for row in rows:
                self._saw(stream, newest, f"d{row[0]}", row[1])

    # -- answers ---------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Returns the stored rows; numbers as int or float, times as units, `#key` orders rows of equal time."""
        key = self.schema.columns[1].name if self.schema.keyed else None
        return [{name: _plain(value) for name, value in row.items()} | {"#key": row[key] if key else 0}
                for row in self.store.rows().to_pylist()]

    def _look(self) -> None:
        for stream, kit, _ in self.kits:
            _about(stream, kit.run)
        rows = self.rows()
        self._compare(rows, lambda trigger: trigger == "at_once")
        for seconds in (IDLE_S, DELAY_S - IDLE_S):
            self._pass(seconds)
        self._compare(rows, lambda trigger: trigger.startswith(("window_close", "max_delay")))
        if any(stream.trigger.startswith("continuous") for stream, _, _ in self.kits):
            self._pass(RECALCULATE_S)
            self._compare(rows, lambda trigger: trigger.startswith("continuous"))
        self._verify()

    def _pass(self, seconds: float) -> None:
        self.store.clock.advance(seconds)
        for stream, kit, _ in self.kits:
            if stream.trigger != "at_once":
                _about(stream, kit.run)

    def _compare(self, rows: Sequence[Row], wanted: Callable[[str], bool]) -> None:
        for stream, kit, newest in self.kits:
            if not wanted(stream.trigger):
                continue
            got = self.result(stream, kit)
            if stream.trigger.startswith(("at_once", "max_delay")):
                self._assert_same(stream, got, stream.answer(rows))
            elif stream.by_table or self.schema.vnodes == 1:
                self._assert_same(stream, got, stream.answer(rows, lambda row, stream=stream, newest=newest:
                                  newest[self.closed_tables[row["tbname"]]] - stream.watermark))
            elif stream.fill is None:
                self._assert_between(stream, got, rows, newest)

    def _assert_between(self, stream: Stream, got: Answer, rows: Sequence[Row], newest: Mapping[int, int]) -> None:
        """Where several vnodes feed a group, time goes by the least of those that aren't idle."""
        least, most = (choose(newest.values(), default=0) - stream.watermark for choose in (min, max))
        may, must = stream.answer(rows, lambda row: most), stream.answer(rows, lambda row: least)
        self._assert_same(stream, got, {key: may[key] for key in may if key in got or key in must})

    def _assert_same(self, stream: Stream, got: Answer, want: Answer, what: str = "the stream") -> None:
        wrong = [f"{key}: {what} has {got.get(key)} instead of {want.get(key)}" for key in {**want, **got}
                 if key not in got or key not in want or not _equal(got[key], want[key])]
        assert not wrong, f"{stream.sql}\n" + "\n".join(wrong)

    def result(self, stream: Stream, kit: StreamKit) -> Answer:
        """Returns the stream's result rows as the model has them."""
        answer: Answer = {}
        for row in kit.results.values():
            values = [self._result_value(value) for value in row.values()]
            _add(stream, answer, values)
        return answer

    def _result_value(self, value: Any) -> Any:
        if isinstance(value, datetime):
            nanoseconds = getattr(value, "nanosecond", 0)
            whole = value.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
            micros = (whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds
            return {"ms": micros // 1000, "us": micros, "ns": micros * 1000 + nanoseconds}[self.schema.precision]
        return _plain(value)

    def _compare_batch(self) -> None:
        """Compares the model with the batch query, which shares the planner with the streams."""
        rows = self.rows()
        for stream, _, _ in self.kits:
            statement = parse_one(stream.query)
            assert isinstance(statement, Select)
            plan = plan_query(statement, self.store.catalog, Session("p", self.schema.zone, 0))
            with OpenQuery(plan, self, backend()) as query:
                table = query.table()
            answer: Answer = {}
            for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                _add(stream, answer, [self._result_value(value) for value in row])
            want = stream.answer(rows, fill=False)
            if stream.window is not None and stream.window.kind == "session":
                want = {key: (None, *row[1:]) for key, row in want.items()}  # in a query it ends with its last row
            self._assert_same(stream, answer, want, "the query")

    def relation(self, scan: Scan) -> ScannedRows:
        """Returns the rows of a scan of the batch query."""
        return source_rows(self.store, scan)

    def _verify(self) -> None:
        """Asks the second judge of streams that have read everything and rest."""
        for stream, kit, _ in self.kits:
            refused = verify_kit(kit, stream.sql, Session("p", self.schema.zone, 0))
            self.verdicts["refused" if refused else "verified"] += 1


def _interrupt(kit: StreamKit, kind: str, what: Any) -> None:
    match kind:
        case "steps":
            kit.run_steps(what)
        case "checkpoint":
            kit.run()
            kit.checkpoint(commit=what)
        case "amid":
            kit.checkpoint_amid()
        case "kill":
            kit.kill()


def _about(stream: Stream, act: Callable[[], None]) -> None:
    """Acts, and names the stream if that fails."""
    try:
        act()
    except Exception as error:
        error.add_note(stream.sql)
        raise


def _add(stream: Stream, answer: Answer, values: list[Any]) -> None:
    """Takes a result row, in the order of `Stream.query`, over into an answer."""
    if stream.window is None:
        keys = values[:2] if stream.schema.keyed else values[:1]
        key: Key = (values[-1], *keys)
        row = tuple(values[len(keys):-1])
    else:
        last = len(values) - len(stream.groups)
        key, row = (*values[last:], values[0]), tuple(values[1:last])
    assert key not in answer, f"{stream.sql}\ntwo rows for {key}"
    answer[key] = row


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def _equal(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """Compares rows; None as the end of a window means that the model doesn't say."""
    return len(left) == len(right) and all(
        math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) if _is_number(a) and _is_number(b) and isinstance(a + b, float)
        else a == b
        for n, (a, b) in enumerate(zip(left, right, strict=True)) if not (n == 0 and b is None and isinstance(a, int)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
