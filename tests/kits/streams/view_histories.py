"""Many random views and streams over the same tables, and what happens to these: drawn by a seed, played, made smaller.

After each round of changes every result table is compared with DuckDB's answer over plain copies of the rows, and with
the query's own. An engine without Spark plays it in the calling thread.
"""

from __future__ import annotations

import itertools
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import TestBed
from kits.queries.plain_tables import RESULTS, PlainDesign, PlainTable, plain_design
from kits.queries.random_queries import MACROS, NARROW, Question, family_of, same, windows
from kits.queries.random_questions import questions
from kits.queries.random_views import Drawing, Relation, Type, View, row_views, views
from kits.queries.targets import rows_of
from kits.queries.written_tables import Design, Written, designs

from penstock.common.errors import InternalError, PenstockError
from penstock.mnode.catalog.name_lookup import require_database
from penstock.planner.task_plans.stream_plan import RefreshPlan
from penstock.shell.api.parameter_binding import bind
from penstock.sql.types import DataType, Kind

T = TypeVar("T")
Step = tuple[str, Any]
#: Streams that are their query's answer, whatever comes late or changes.
ANSWERS = "TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 FILL_HISTORY 1"
_BYTES = 8_192
_VGROUPS_MAX = 4
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Kept:
    """What is to be kept up to date from before a round on. `options`: those of a stream; None: it is a view."""

    name: str
    view: View
    options: str | None
    round: int

    @property
    def statement(self) -> str:
        if self.options is None:
            return f"CREATE MATERIALIZED VIEW {self.name} AS {self.view.ours}"
        return f"CREATE STREAM {self.name} {self.options} INTO {self.name} AS {self.view.ours}"

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(re.findall(r"\bv\d+\b", self.view.ours))


@dataclass(frozen=True)
class Case:
    """Tables, what is kept of them, and rounds of steps; after each round all is compared."""

    design: Design
    plains: tuple[PlainDesign, ...]
    kept: tuple[Kept, ...]
    rounds: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True)
class Failure:
    """What went wrong: of which view, if of one, and in which round."""

    name: str
    round: int
    problem: str


@dataclass
class Outcome:
    """What became of cases."""

    views: int = 0
    comparisons: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def refuse(self, who: str, error: object, example: str) -> None:
        reason = f"{who}: {_pattern(str(error))}"
        self.refused[reason] += 1
        self.examples.setdefault(reason, example)


def _pattern(message: str) -> str:
    """A message without the names and numbers of the moment."""
    text = message.strip().split("\n")[0]
    return re.sub(r"`[^`]*`|'[^']*'|\"[^\"]*\"|\b[a-z]*\d+\b", "...", text)[:150]


# --- drawing --------------------------------------------------------------------------------------------------------

_drawing: list[tuple[st.SearchStrategy[Any], list[Any]]] = []


@settings(database=None)
@given(st.data())
def _take(data: st.DataObject) -> None:
    strategy, found = _drawing[-1]
    found.append(data.draw(strategy))


def drawn(strategy: st.SearchStrategy[T], chance: random.Random) -> T:
    """What a strategy of hypothesis gives by chance, without hypothesis' search."""
    found: list[T] = []
    while not found:  # filters may have refused it
        _drawing[:] = [(strategy, found)]
        _take.hypothesis.fuzz_one_input(chance.randbytes(_BYTES))
    return found[0]


def case(seed: int, count: int = 30) -> Case:
    """The case of a seed, with so many views."""
    chance = random.Random(seed)
    design = drawn(designs().filter(
        lambda design: any(column.type.kind in NARROW for column in design.columns)
        and RESULTS.isdisjoint(each.name for each in (*design.columns, *design.tags))), chance)
    design = replace(design, since=(0,) * len(design.columns))
    plains = tuple(plain_design(chance, name, keyed=name == "k", precision=design.precision) for name in "kn")
    rounds = _rounds(chance, design, plains, count)
    kept: list[Kept] = []
    for n in range(count):
        begin = chance.choice([0, 0, *range(1, len(rounds))])
        kept.append(_kept(chance, f"v{n}", design, plains, kept, begin))
    return Case(design, plains, tuple(kept), rounds)


def _kept(chance: random.Random, name: str, design: Design, plains: Sequence[PlainDesign], others: Sequence[Kept],
          begin: int) -> Kept:
    how = chance.random()
    if how < 0.12:
        question = drawn(st.composite(windows)(design, "st", "st").filter(
            lambda question: "count(distinct" not in question.ours), chance)
        return Kept(name, _of_question(question, "windows"), ANSWERS, begin)
    if how < 0.35:
        question = drawn(st.composite(questions)(design, "st", "st").filter(
            lambda question: Kind.OTHER not in question.kinds), chance)
        return Kept(name, _of_question(question, "question"), None, begin)
    names = {column.plain: column.quoted for part in (design.columns, design.tags, *(plain.columns for plain in plains))
             for column in part} | {"tb": "tbname"}
    known = [relation for other in others if other.round <= begin
             if (relation := _readable(other)) is not None]
    tables = [_super(design), *map(_plain, plains)]
    if how < 0.4:
        view = drawn(st.composite(lambda draw: row_views(Drawing(draw, tables, (), names)))(), chance)
        return Kept(name, view, ANSWERS, begin)
    known = chance.sample(known, min(2, len(known)))
    view = drawn(st.composite(lambda draw: views(Drawing(draw, tables, known, names)))(), chance)
    return Kept(name, view, "" if view.whole and chance.random() < 0.5 else None, begin)


def _of_question(question: Question, kind: str) -> View:
    found: list[Type | None] = []
    for type in question.kinds:
        found.append("number" if type in NARROW else "text" if type in (Kind.VARCHAR, Kind.NCHAR) else
                     "bool" if type is Kind.BOOL else "time" if type is Kind.TIMESTAMP else None)
    return View(question.ours, question.theirs, tuple((f"r{n}", type) for n, type in enumerate(found)), kind)


def _readable(kept: Kept) -> Relation | None:
    """What others may read of a result."""
    columns = tuple((name, type) for name, type in kept.view.items if type is not None)
    return Relation(kept.name, columns) if {"number", "text"} <= {type for _, type in columns} else None


def _type(type: DataType) -> Type:
    if type.kind in NARROW:
        return "number"
    if type.kind in (Kind.BIGINT, Kind.UBIGINT):
        return "wide"
    family = family_of(type.kind)
    return "real" if family == "number" or family == "other" else family


def _super(design: Design) -> Relation:
    own = tuple((f"«{column.plain}»", _type(column.type)) for column in (*design.columns, *design.tags))
    return Relation("st", (*own, ("ts", "time"), ("«tb»", "text")),
                    ("«tb»", "ts", *(["«c0»"] if design.keyed else [])))


def _plain(design: PlainDesign) -> Relation:
    own = tuple((f"«{column.plain}»", _type(column.type)) for column in design.columns)
    if design.keys:
        return Relation(design.name, own, tuple(name for name, _ in own[:design.keys]))
    return Relation(design.name, (("ts", "time"), *own), ("ts",))


def _rounds(chance: random.Random, design: Design, plains: Sequence[PlainDesign], count: int
            ) -> tuple[tuple[Step, ...], ...]:
    """The design's own steps, and others among them."""
    times = [row[1] for kind, what in design.steps if kind == "insert" for row in what[1]] or [0, 1_000_000_000]
    times += [time + 1 for time in times[:4]]
    steps: list[Step] = [("st", number) for number in range(len(design.steps))]
    steps += [step for plain in plains for _ in range(chance.randint(2, 5)) for step in [_change(chance, plain, times)]]
    chance.shuffle(steps)
    steps.sort(key=lambda step: step[0] == "st" and step[1])  # the design's own stay in their order
    own = iter(sorted(step[1] for step in steps if step[0] == "st"))
    places = chance.sample(range(len(steps)), len(design.steps))
    others = iter([step for step in steps if step[0] != "st"])
    chance_order = set(places)
    steps = [("st", next(own)) if place in chance_order else next(others) for place in range(len(steps))]
    rounds: list[tuple[Step, ...]] = []
    while steps:
        some = chance.choice([1, 2, 3, 4])
        found, steps = steps[:some], steps[some:]
        if chance.random() < 0.6:
            found.insert(chance.randint(0, len(found)), _upkeep(chance, count))
        rounds.append(tuple(found))
    return tuple(rounds)


def _change(chance: random.Random, plain: PlainDesign, times: Sequence[int]) -> Step:
    if chance.random() < 0.7:
        return "insert", (plain.name, plain.rows(chance, times))
    if plain.keys:
        return "delete", (plain.name, *chance.choices(plain.values[0], k=2))
    return "delete", (plain.name, *sorted(chance.choices(times, k=2)))


def _upkeep(chance: random.Random, count: int) -> Step:
    kind = chance.choice(["checkpoint", "checkpoint", "kill", "kill", "flush", "compact", "reopen", "wait", "pause",
                          "pause", "resume", "widen", "rest", "rest", "split", "again", "again", "recalculate"])
    if kind in ("again", "recalculate"):
        return kind, f"v{chance.randrange(count)}"
    if kind == "widen":
        return kind, chance.choice(["TABLE k", "TABLE n", "STABLE st"])
    return kind, chance.sample(range(count), chance.choice([1, 3, count // 2 + 1])) if kind == "pause" else None


# --- playing --------------------------------------------------------------------------------------------------------


class Player:
    """Plays a case in an engine of its own; `story` is what the engine was told. Once only."""

    def __init__(self, case: Case, outcome: Outcome, folder: Path) -> None:
        self.case, self.outcome, self._folder = case, outcome, folder
        self._bed = self._opened()
        self._zone = "UTC"
        self._peer = duckdb.connect(config={"threads": 1})
        self._written = Written(case.design, self, name="st")
        self._plains = {plain.name: PlainTable(plain, self) for plain in case.plains}
        self._kept: dict[str, Kept] = {}
        self._paused: set[str] = set()
        self._failed: set[str] = set()
        self._widened = self._round = 0
        self.story: list[str] = []

    def _opened(self) -> TestBed:
        return TestBed(config={"stateMapSize": "1GiB"}, directory=self._folder)

    # -- as a target of tables

    def execute(self, text: str, parameters: Sequence[object] = ()) -> None:
        text = bind(text, parameters) if parameters else text
        self.story.append(text)
        self._bed.engine.execute(text, self._bed.session)

    def insert_arrow(self, table: str, rows: pa.Table) -> None:
        self.story.append(f"-- as Arrow into {table}: {rows.to_pylist()}")
        self._bed.engine.insert_arrow(table, rows, self._bed.session)

    def set_time_zone(self, zone: str) -> None:
        self._bed.session.time_zone = self._zone = zone

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        table = self._bed.engine.execute(query, self._bed.session).table
        return [] if table is None else rows_of(table)

    # -- rounds

    def play(self) -> list[Failure]:
        """Returns what was wrong."""
        try:
            self._peer.execute(MACROS.format(units=self.case.design.units, zone=self.case.design.zone))
            self._written.create()
            for plain in self._plains.values():
                plain.create()
            for number, steps in enumerate(self.case.rounds):
                self._round = number
                self._load()
                for kept in self.case.kept:
                    if kept.round == self._round:
                        self._begin(kept)
                for step in steps:
                    self._step(*step)
                self._compare()
            self._step("resume", None)
            self._compare(last=True)
        except Exception as error:  # noqa: BLE001 - the engine gave up in the midst of it: that is found, too
            self._fail("", f"{type(error).__name__}: {error}")
        finally:
            self._peer.close()
            self._bed.close()
        return self.outcome.failures

    def _begin(self, kept: Kept) -> None:
        view, outcome = kept.view, self.outcome
        if kept.reads - self._kept.keys():
            outcome.refused["it reads one that was refused"] += 1
            return
        try:
            self._peer.execute(f"CREATE OR REPLACE VIEW {kept.name} AS {view.theirs}")
        except duckdb.Error as error:
            outcome.refuse("DuckDB", error, view.theirs)
            return
        try:
            self.execute(kept.statement)
        except InternalError as error:
            self._fail(kept.name, f"{error}\n{kept.statement}")
            return
        except PenstockError as error:
            outcome.refuse("Penstock", error, kept.statement)
            self.story.pop()
            return
        self._kept[kept.name] = kept
        outcome.views += 1
        outcome.kinds[view.kind] += 1
        outcome.ways[self._way(kept.name)] += 1
        outcome.made.append(kept.statement)

    def _way(self, name: str) -> str:
        parts = self._bed.engine.parts
        record = parts.directory.catalog.streams.named(name)
        assert record is not None
        refresh = parts.streams.known.plans[record.id].plan.computation
        if not isinstance(refresh, RefreshPlan):
            return "by tasks"
        return "touched values" if refresh.touched else "groups of tags" if refresh.groups else "whole"

    def _step(self, kind: str, what: Any) -> None:
        if kind in ("checkpoint", "kill", "compact", "reopen", "wait", "rest"):
            self.story.append(f"-- {kind}")
        match kind:
            case "st":
                self._written.play(what)
            case "insert":
                self._plains[what[0]].insert(what[1])
            case "delete":
                self._plains[what[0]].delete(*what[1:])
            case "widen":
                self._widened += 1
                self.execute(f"ALTER {what} ADD COLUMN more{self._widened} INT")
            case "pause":
                for name in (f"v{number}" for number in what):
                    if name in self._kept and name not in self._paused:
                        self.execute(f"PAUSE STREAM {name}")
                        self._paused.add(name)
            case "resume":
                for name in sorted(self._paused):
                    self.execute(f"RESUME STREAM {name}")
                self._paused.clear()
            case "split":
                self._bed.run()  # who splits waits until streams have read all, and none works meanwhile
                if len(self._vgroups) < _VGROUPS_MAX and not self._failing():
                    self._try(f"SPLIT VGROUP {self._vgroups[0]}")
            case "recalculate":
                if what in self._kept:
                    self._try(f"RECALCULATE STREAM {what} FROM 0")
            case "again":
                kept = self._kept.get(what)
                if kept is not None and kept.options is None and self._try(f"DROP MATERIALIZED VIEW {what}"):
                    self._paused.discard(what)
                    self.execute(kept.statement)
            case "flush":
                self.execute(f"FLUSH DATABASE {self._bed.session.database}")
            case "compact":
                for vgroup in self._vgroups:
                    self._bed.engine.storage.vnode(vgroup).compact(full=True)
            case "reopen":
                database = self._bed.session.database
                self._bed.close()
                self._bed = self._opened()
                self._bed.session.database, self._bed.session.time_zone = database, self._zone
            case "wait":
                self._bed.advance(6)
            case "rest":
                self._bed.run()
            case "checkpoint" | "kill":
                getattr(self._bed, kind)()

    @property
    def _vgroups(self) -> Sequence[int]:
        return require_database(
            str(self._bed.session.database), self._bed.engine.parts.directory.catalog).vgroup_ids

    def _try(self, statement: str) -> bool:
        """Executes a statement that some streams, or the moment, may forbid."""
        try:
            self.execute(statement)
        except InternalError:
            raise
        except PenstockError as error:
            self.outcome.refuse("as a step", error, self.story.pop())
            return False
        return True

    def _load(self) -> None:
        self._written.load(self._peer, "st")
        for plain in self._plains.values():
            plain.load(self._peer)

    # -- comparing

    def _compare(self, *, last: bool = False) -> None:
        """Compares all that can be: what is paused, or reads what is, is as its query says, not as DuckDB does."""
        self._bed.run()
        self.story.append("-- compared")
        self._load()
        behind = self._behind()
        failing = self._failing()
        for place, (name, kept) in enumerate(self._kept.items()):
            if name in self._failed:
                continue
            if name in failing:
                self.outcome.refuse("later", failing[name], kept.statement)
                continue
            self._compare_one(kept, name in behind, last or (place + self._round) % 3 == 0)

    def _failing(self) -> dict[str, str]:
        """Returns why streams can't be computed."""
        return {name: reason for name, state, reason in self.ask(
            "SELECT stream_name, state, reason FROM information_schema.ins_streams") if reason and state != "PAUSED"}

    def _behind(self) -> set[str]:
        found = set(self._paused)
        for name, kept in self._kept.items():  # in their order: those that read others come behind
            if kept.reads & found:
                found.add(name)
        return found

    def _compare_one(self, kept: Kept, behind: bool, ask: bool) -> None:
        name, counts = kept.name, self.outcome.comparisons
        columns = ", ".join(column for column, _ in kept.view.items)
        held = asked = want = None
        if name not in self._paused:
            held = self.ask(f"SELECT {columns} FROM {name}")
        # A stream has sessions end later than a query has.
        if (ask or behind) and "session(" not in kept.statement.partition(" INTO ")[2]:
            try:
                asked = self.ask(kept.view.ours)
            except PenstockError as error:
                self._fail(name, f"the query alone is refused: {error}\n{kept.view.ours}")
                return
        if not behind:
            try:
                want = self._peer.execute(kept.view.theirs).fetchall()
            except duckdb.Error as error:
                self.outcome.refuse("DuckDB later", error, kept.view.theirs)
        for left, right, what in ((asked, want, "query and DuckDB"), (held, want, "table and DuckDB"),
                                  (held, asked, "table and query")):
            if left is None or right is None:
                continue
            counts[what] += 1
            if not same(left, right, ordered=False):
                self._fail(name, f"{what} differ ({self._way(name)}): {kept.statement}\nDuckDB: {kept.view.theirs}\n"
                                 f"{_difference(left, right)}")
                return

    def _fail(self, name: str, problem: str) -> None:
        self._failed.add(name)
        self.outcome.failures.append(Failure(name, self._round, problem))


def _difference(left: Sequence[tuple[Any, ...]], right: Sequence[tuple[Any, ...]]) -> str:
    found, wanted = Counter(map(repr, left)), Counter(map(repr, right))
    return "\n".join([*(f"  left alone: {row}" for row in sorted((found - wanted).elements())[:6]),
                      *(f"  right alone: {row}" for row in sorted((wanted - found).elements())[:6])])


def play(case: Case, outcome: Outcome | None = None) -> tuple[list[Failure], list[str]]:
    """Plays a case in a directory of its own; returns what was wrong with it, and its story."""
    with tempfile.TemporaryDirectory(prefix="views-", dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        player = Player(case, Outcome() if outcome is None else outcome, Path(folder))
        before = len(player.outcome.failures)
        return player.play()[before:], player.story


# --- making smaller -------------------------------------------------------------------------------------------------


def smaller(case: Case, failure: Failure) -> Case:
    """The case with as little as possible that is still wrong in the same way: with the same view, or with none."""
    needed = {failure.name}
    for kept in reversed(case.kept):
        needed |= kept.reads if kept.name in needed else set()
    kept_ = tuple(kept for kept in case.kept if not failure.name or kept.name in needed)
    case = replace(case, rounds=case.rounds[:failure.round + 1])
    tried = itertools.chain([replace(case, kept=kept_)], _less(case, failure.name))
    while (each := next(tried, None)) is not None:
        found = next((one for one in play(each)[0] if one.name == failure.name), None)
        if found is not None:
            case = replace(each, rounds=each.rounds[:found.round + 1])
            tried = itertools.chain(_less(case, failure.name))
    return case


def _less(case: Case, name: str) -> Iterator[Case]:
    """Cases with one thing less."""
    for number in reversed(range(len(case.kept))):
        if case.kept[number].name != name:
            yield replace(case, kept=case.kept[:number] + case.kept[number + 1:])
    for number, steps in enumerate(case.rounds):
        if steps:
            yield _with_round(case, number, ())
        for place, (kind, what) in enumerate(steps):
            yield _with_round(case, number, steps[:place] + steps[place + 1:])
            if kind == "insert" and len(what[1]) > 1:
                table, rows = what
                for row in range(len(rows)):
                    fewer = (kind, (table, rows[:row] + rows[row + 1:]))
                    yield _with_round(case, number, (*steps[:place], fewer, *steps[place + 1:]))


def _with_round(case: Case, number: int, steps: tuple[Step, ...]) -> Case:
    return replace(case, rounds=(*case.rounds[:number], steps, *case.rounds[number + 1:]))
