"""The record of a function of the dialect: arguments, result, where it may stand, what DuckDB computes for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.common.errors import InvalidStatementError, Position
from penstock.common.suggestions import alternatives
from penstock.planner.duckdb_sql.duckdb_tree import Tree, fragment
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.grouped_call import GroupedCall, Selection
from penstock.planner.functions.line_call import AlongRows, PicksRows
from penstock.planner.functions.partials import Names, Partial
from penstock.planner.logical.group_values import Covered
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.sql.tree.statements import Duration
from penstock.sql.types import FLOATS, INTEGERS, SIGNED, STRINGS, UNSIGNED, DataType, Kind, Precision

Category = Literal["scalar", "aggregate", "selection", "timeseries", "pseudo"]
ResultRule = Callable[[Sequence[DataType]], DataType]
AggregateBuilder = Callable[[GroupedCall], Tree]
Splitter = Callable[[GroupedCall, Names], Partial]
StretchesBuilder = Callable[[Covered], Tree]
ScalarBuilder = Callable[[ScalarCall], Tree | SqlExpr]

WRONG_ARGUMENT_COUNT = 0x2801
WRONG_ARGUMENT_TYPE = 0x2802
WRONG_ARGUMENT_VALUE = 0x2803
UNKNOWN_FUNCTION = 0x2804

# Booleans are no numbers to functions: TDengine refuses sum(flag), as it refuses sum of a text.
NUMBERS = frozenset((*INTEGERS, *FLOATS, Kind.DECIMAL))
INTEGER_KINDS = frozenset(INTEGERS)
TEXTS = frozenset(STRINGS)
TIMES = frozenset((Kind.TIMESTAMP, Kind.BIGINT, Kind.UBIGINT, Kind.INT, *STRINGS))
EVERY = frozenset(Kind)
ANY = EVERY - {Kind.OTHER}
ZERO_ONE = (0, 1)


@dataclass(frozen=True, slots=True)
class Argument:
    """What one argument may be.

    `accepts`: kinds of values; NULL is always accepted unless `literal`. `literal`: must be a constant.
    `low`, `high`: inclusive bounds of a literal number. `choices`: the literals allowed, lower-case if texts.
    `optional`: may be left out. `repeats`: how often the last argument may be given.
    `duration`: a duration literal such as `1s`. `units`: it may also be a number, of units of the
    precision, and have any sign. `star`: `*` may stand here. `varies`: it can't be a constant.
    `not_time_line`: nor the primary timestamp.
    """

    name: str
    accepts: frozenset[Kind] = ANY
    literal: bool = False
    low: int | None = None
    high: int | None = None
    choices: tuple[str | int, ...] = ()
    optional: bool = False
    repeats: int = 1
    duration: bool = False
    units: bool = False
    star: bool = False
    varies: bool = False
    not_time_line: bool = False


@dataclass(frozen=True, slots=True)
class PseudoColumn:
    """What a pseudo column tells of, and what DuckDB computes for it.

    `value` is given what is known there. row: its time; window: its start and end; range: the first and last instant as
    integers; instant: its time, whether no row is there, and the time of the row that its value is from; table: its
    name.
    """

    of: Literal["row", "window", "range", "instant", "table"]
    value: Callable[..., Tree]


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """One function of the dialect.

    `in_stream`: a stream's query may call it; `only_force_window_close`: but only under that trigger.
    `typed`: what tells the type of the result in place of `result`, of an aggregate for which constants matter.
    `multi_row`: one call can give several rows; `multiplies`: one in each row, of results alone. `summary` is one
    sentence for the function reference, `example` what stands behind SELECT in its example over the table of
    scripts/function_examples.py.
    `counts`: it has a value where there are no rows, too. `needs_time`: rows must have a time line.
    `not_in_interval`, `one_table`: it may not stand next to INTERVAL, and not over the rows of a super table.
    `of_call`: it computes expressions over the row that the call in its first argument takes its value from. `of_keys`:
    its arguments are keys of GROUP BY.
    `instants`: its rows are instants of the grid that RANGE and EVERY make.
    `check` raises InvalidStatementError for calls that can't be meant although the arguments' types are right.
    `aggregate`: what DuckDB computes of grouped rows; `split`: how source and agg tasks do. `retracts`: of
    arguments of these kinds rows can be taken out of its partials without loss. `different`: the function that gives of
    all values what it gives of different ones, "" if none is known. `by_stretches`: what it computes of the
    stretches of time between rows.
    `counts_of_duckdb`: with so many arguments a call is of DuckDB's function of the same name.
    `adds_squares`: it is made of a sum of squares. `along_rows`: it takes all rows of a group in their order.
    `selects`: which row it takes its value from, if columns of that row can stand next to it; `selects_equal`: they
    can, and the row is the first that has its value.
    `volatile`: it is not deterministic.
    `scalar`: what DuckDB computes for a call in a row, for functions of the category scalar: a function of the call, or
    a template whose holes are named as the arguments, which are numbers as DOUBLE, texts as VARCHAR.
    `along`, `picks`: what it computes for a function that runs along rows, or picks rows. `pseudo`: and for a pseudo
    column.
    """

    name: str
    category: Category
    arguments: tuple[Argument, ...]
    result: ResultRule
    summary: str
    in_stream: bool = True
    only_force_window_close: bool = False
    multi_row: bool = False
    multiplies: bool = False
    example: str = ""
    counts: bool = False
    needs_time: bool = False
    check: Callable[[GroupedCall], object] | None = None
    not_in_interval: bool = False
    one_table: bool = False
    of_call: bool = False
    of_keys: bool = False
    instants: bool = False
    typed: Callable[[GroupedCall], DataType] | None = None
    aggregate: AggregateBuilder | None = None
    split: Splitter | None = None
    retracts: frozenset[Kind] | None = None
    different: str = ""
    selects: Selection | None = None
    selects_equal: bool = False
    volatile: bool = False
    by_stretches: StretchesBuilder | None = None
    scalar: ScalarBuilder | str | None = None
    along: AlongRows | None = None
    picks: PicksRows | None = None
    adds_squares: bool = False
    counts_of_duckdb: tuple[int, ...] = ()
    along_rows: bool = False
    pseudo: PseudoColumn | None = None

    @property
    def minimum(self) -> int:
        """The least number of arguments."""
        return sum(not argument.optional for argument in self.arguments)

    @property
    def maximum(self) -> int:
        """The greatest number of arguments."""
        return sum(argument.repeats for argument in self.arguments)

    @property
    def looks_back(self) -> bool:
        """Whether it is computed of rows before those of the window or instant, too."""
        return self.by_stretches is not None or self.instants

    @property
    def goes_by_order(self) -> bool:
        """Whether its value depends on the order of a group's rows."""
        picks_by_order = self.selects is not None and not self.selects.by_value
        return self.along_rows or self.needs_time or self.multi_row or picks_by_order

    @property
    def has_companions(self) -> bool:
        """Whether columns of the row that it takes its value from can stand next to it."""
        return self.selects is not None or self.selects_equal

    @property
    def expands(self) -> bool:
        """Whether `*` stands for several calls, one per column."""
        return self.category == "selection" and self._takes_star

    @property
    def takes_rows(self) -> bool:
        """Whether `*` stands for whole rows."""
        return self.category == "aggregate" and self._takes_star

    @property
    def _takes_star(self) -> bool:
        return bool(self.arguments) and self.arguments[0].star

    @property
    def gives_list(self) -> bool:
        """Whether its rows are the items of a list that is computed per group."""
        return self.multi_row and self.aggregate is not None

    @property
    def unit_argument(self) -> int | None:
        """The place of the argument that is a unit of time, None if there is none."""
        return next((place for place, argument in enumerate(self.arguments) if argument.duration), None)

    @property
    def signature(self) -> str:
        """The call as the reference prints it, for example `round(number[, digits])`."""
        text = ""
        for index, argument in enumerate(self.arguments):
            item = (", " if index else "") + argument.name
            if argument.repeats > 1:
                item += f"[, {argument.name}]..."
            text += f"[{item}]" if argument.optional else item
        return self.name if self.category == "pseudo" else f"{self.name}({text})"

    def compile(self, call: ScalarCall) -> SqlExpr:
        """Returns what DuckDB computes for a call of a scalar function, whose arguments were checked. May raise."""
        assert self.scalar is not None
        if isinstance(self.scalar, str):
            holes = {argument.name: call.text(index) if argument.accepts == TEXTS else call.double(index)
                     for index, argument in enumerate(self.arguments)}
            return SqlExpr(fragment(self.scalar, **holes), call.result)
        built = self.scalar(call)
        return built if isinstance(built, SqlExpr) else SqlExpr(built, call.result)

    def argument(self, index: int) -> Argument:
        """Returns the rule for the argument at `index`; the last rule covers its repetitions."""
        return self.arguments[min(index, len(self.arguments) - 1)]


def _count_text(spec: FunctionSpec) -> str:
    low, high = spec.minimum, spec.maximum
    if low == high:
        return f"{low} argument{'' if low == 1 else 's'}" if low else "no arguments"
    return f"{low} to {high} arguments" if high < 1000 else f"at least {low} arguments"


def describe_kinds(kinds: frozenset[Kind]) -> str:
    """Returns the kinds of values as messages and the reference name them."""
    if kinds in (ANY, EVERY):
        return "of a type that columns have"
    if kinds == NUMBERS:
        return "a number"
    if kinds == INTEGER_KINDS:
        return "an integer"
    if kinds == TEXTS:
        return "a string"
    if kinds == TIMES:
        return "a timestamp, an integer or a string that reads as a time"
    if kinds > NUMBERS:
        return alternatives(["a number", *_names(kinds - NUMBERS)])
    return alternatives(_names(kinds))


def _names(kinds: frozenset[Kind]) -> list[str]:
    return sorted("a type of DuckDB's" if kind is Kind.OTHER else kind.value for kind in kinds)


def check_call(
    spec: FunctionSpec,
    types: Sequence[DataType],
    constants: Sequence[object | None] = (),
    *,
    precision: Precision = "ms",
    position: Position | None = None,
) -> DataType:
    """Checks the arguments of a call and returns the type of its result.

    `types` has one type per argument. `constants` has the value of each argument that is known when planning
    (int, float, bool, str, `Duration`), else None; it may be shorter. Raises InvalidStatementError.
    """
    if not spec.minimum <= len(types) <= spec.maximum:
        raise InvalidStatementError(
            f"{spec.name}() takes {_count_text(spec)}, not {len(types)}",
            code=WRONG_ARGUMENT_COUNT,
            hint=f"write {spec.signature}",
            position=position,
        )
    for index, given in enumerate(types):
        constant = constants[index] if index < len(constants) else None
        _check_argument(spec, index, given, constant, position)
    return spec.result(types).with_precision(precision)


def _check_argument(
    spec: FunctionSpec, index: int, given: DataType, constant: object | None, position: Position | None
) -> None:
    rule = spec.argument(index)
    where = f"argument {index + 1} ({rule.name}) of {spec.name}()"

    def wrong(code: int, text: str) -> InvalidStatementError:
        return InvalidStatementError(
            f"{where} must be {text}", code=code, hint=f"write {spec.signature}", position=position
        )

    if rule.duration:
        counts = rule.units and isinstance(constant, int)
        if not isinstance(constant, Duration) and not counts and not (given.kind is Kind.NULL and rule.optional):
            raise wrong(WRONG_ARGUMENT_TYPE, "a duration such as 1s")
        return
    if isinstance(constant, Duration):
        raise wrong(WRONG_ARGUMENT_TYPE, f"{describe_kinds(rule.accepts)}, not the duration {constant}")
    if rule.varies and (constant is not None or given.kind is Kind.NULL):
        raise wrong(WRONG_ARGUMENT_TYPE, "made of columns, not a constant")
    if rule.literal and constant is None:
        raise wrong(WRONG_ARGUMENT_TYPE, "a constant")
    if given.kind is not Kind.NULL and given.kind not in rule.accepts:
        raise wrong(WRONG_ARGUMENT_TYPE, f"{describe_kinds(rule.accepts)}, not {given.sql()}")
    if constant is None:
        return
    if rule.choices:
        folded = constant.lower() if isinstance(constant, str) else constant
        if folded not in rule.choices:
            choices = ", ".join(str(choice) for choice in rule.choices)
            raise wrong(WRONG_ARGUMENT_VALUE, f"one of {choices}, not {constant}")
    if isinstance(constant, int | float):
        too_low = rule.low is not None and constant < rule.low
        too_high = rule.high is not None and constant > rule.high
        if too_low or too_high:
            upper = f" and at most {rule.high}" if rule.high is not None else ""
            limits = f"at least {rule.low}{upper}"
            raise wrong(WRONG_ARGUMENT_VALUE, f"{limits}, not {constant}")


def function(name: str, arguments: tuple[Argument, ...], result: ResultRule, scalar: ScalarBuilder | str, example: str,
             summary: str) -> FunctionSpec:
    """Returns the record of a scalar function."""
    return FunctionSpec(name, "scalar", arguments, result, summary, example=example, scalar=scalar)


# --- result rules ----------------------------------------------------------------


def always(result: DataType) -> ResultRule:
    """Returns the rule of a function whose result type does not depend on its arguments."""
    return lambda _types: result


def same_as_first(types: Sequence[DataType]) -> DataType:
    """The type of the first argument."""
    return types[0]


def sum_type(types: Sequence[DataType]) -> DataType:
    """BIGINT for signed integers and booleans, BIGINT UNSIGNED for unsigned ones, DOUBLE for the rest."""
    kind = types[0].kind
    if kind in SIGNED or kind is Kind.BOOL:
        return DataType(Kind.BIGINT)
    if kind in UNSIGNED:
        return DataType(Kind.UBIGINT)
    if kind is Kind.DECIMAL:
        return DataType(Kind.DECIMAL, digits=38, scale=types[0].scale)
    return DataType(Kind.DOUBLE)


def joined_text(types: Sequence[DataType]) -> DataType:
    """NCHAR if any argument is, else VARCHAR; as long as all arguments together."""
    kind = Kind.NCHAR if any(given.kind is Kind.NCHAR for given in types) else Kind.VARCHAR
    lengths = [given.length for given in types if given.kind is not Kind.NULL]
    total = sum(length or 0 for length in lengths)
    return DataType(kind, None if None in lengths or not total else total)


def joined_with_separator(types: Sequence[DataType]) -> DataType:
    """As `joined_text`, with the first argument between all others."""
    return joined_text([*types, *([types[0]] * max(len(types) - 3, 0))])


def text_of_first(types: Sequence[DataType]) -> DataType:
    """The kind of the first argument, of unknown length."""
    return DataType(types[0].kind if types[0].kind in STRINGS else Kind.VARCHAR)
