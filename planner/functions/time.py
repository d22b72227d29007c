"""The time functions, over BIGINT timestamps."""

from __future__ import annotations

from penstock.planner.duckdb_sql.duckdb_tree import Tree, fragment, let, or_null, text
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.duckdb_sql.timezones import (
    describe_zone,
    floor_divide,
    from_local_timestamp,
    local_timestamp,
    milliseconds_to_units,
)
from penstock.planner.functions.spec import (
    INTEGER_KINDS,
    TIMES,
    ZERO_ONE,
    Argument,
    ScalarBuilder,
    always,
    function,
)
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.planner.scalar.scalar_cast import timestamp_constant
from penstock.sql.dialect.literals import start_of_day
from penstock.sql.types import BIGINT, INTEGERS, UNITS_PER_SECOND, DataType, Kind, timestamp

TIME_UNIT_INVALID = 0x2806
TIME_UNIT_TOO_SMALL = 0x2807
_UNITS_OF_FUNCTIONS = "buasmhdw"
_TIME = Argument("time", TIMES)


def near(build: ScalarBuilder) -> ScalarBuilder:
    """Returns a builder whose tree is NULL for times that are too far away to compute with."""
    def guarded(given: ScalarCall) -> Tree | SqlExpr:
        built = build(given)
        return or_null(built) if not isinstance(built, SqlExpr) else built
    return guarded


def _now(given: ScalarCall) -> SqlExpr:
    return timestamp_constant(milliseconds_to_units(given.session.now_ms, given.precision), given.precision)


def _today(given: ScalarCall) -> SqlExpr:
    midnight = start_of_day(given.session.now_ms, given.session.time_zone)
    return timestamp_constant(milliseconds_to_units(midnight, given.precision), given.precision)


def _timezone(given: ScalarCall) -> Tree:
    return text(describe_zone(given.session.now_ms, given.session.time_zone))


def _unit_length(given: ScalarCall, index: int) -> int:
    """The length of a unit argument such as `1s` in units of the database's precision."""
    duration = given.duration(index)
    assert duration is not None
    if duration.value != 1 or not duration.unit or duration.unit not in _UNITS_OF_FUNCTIONS:
        raise given.refuse(f"{duration} is not a time unit", TIME_UNIT_INVALID,
                           "use one of 1b, 1u, 1a, 1s, 1m, 1h, 1d, 1w")
    length = duration.in_units(given.precision)
    if length == 0:
        raise given.refuse(f"the unit {duration} is finer than the precision {given.precision} of the database",
                           TIME_UNIT_TOO_SMALL)
    return length


def _instant(given: ScalarCall, index: int) -> Tree:
    """An argument of TIMEDIFF. Bare integers are seconds, milliseconds, ... by their number of digits."""
    if given.arguments[index].type.kind not in INTEGERS:
        return given.time(index).node
    per_second = UNITS_PER_SECOND[given.precision]

    def scaled(x: Tree, per: int) -> Tree:
        return fragment(":x * :by", x=x, by=per_second // per) if per_second >= per else \
            fragment(":x // :by", x=x, by=per // per_second)

    return let(given.integer(index), lambda x: fragment(
        "CASE WHEN abs(:x) < 10000000000 THEN :s WHEN abs(:x) < 10000000000000 THEN :ms "
        "WHEN abs(:x) < 10000000000000000 THEN :us ELSE :ns END",
        x=x, s=scaled(x, 1), ms=scaled(x, 1_000), us=scaled(x, 1_000_000), ns=scaled(x, 1_000_000_000)))


def _timediff(given: ScalarCall) -> Tree:
    difference = fragment(":a - :b", a=_instant(given, 0), b=_instant(given, 1))
    if len(given) < 3 or given.duration(2) is None:
        return difference
    length = _unit_length(given, 2)
    return difference if length == 1 else fragment(":difference // :length", difference=difference, length=length)


def _timetruncate(given: ScalarCall) -> Tree:
    length = _unit_length(given, 1)
    ts = given.time(0).node
    days = {"d": 1, "w": 7}.get(given.duration(1).unit)  # type: ignore[union-attr]
    zone = given.session.time_zone
    if days is None or given.constant(2) == 0 or zone == "UTC":
        return ts if length == 1 else fragment(":whole * :length", whole=floor_divide(ts, length), length=length)
    day = fragment("date_diff('day', DATE '1970-01-01', CAST(:local AS DATE))",
                   local=local_timestamp(ts, given.precision, zone))
    start = fragment("CAST(DATE '1970-01-01' + CAST(:whole * :days AS INTEGER) AS TIMESTAMP)",
                     whole=floor_divide(day, days), days=days)
    return from_local_timestamp(start, given.precision, zone)


def _local(given: ScalarCall) -> Tree:
    return local_timestamp(given.time(0).node, given.precision, given.session.time_zone)


def _week_number(local: Tree, mode: int) -> Tree:
    """MySQL's WEEK(date, mode) of a DuckDB TIMESTAMP."""
    monday_first = mode in (1, 3, 5, 7)
    from_one = mode in (2, 3, 6, 7)
    four_days = mode in (1, 3, 4, 6)

    def whole(day: Tree) -> Tree:
        since_start = fragment("isodow(:day) - 1" if monday_first else "dayofweek(:day)", day=day)
        # A week belongs to the year of its fourth day, or of its first, depending on the mode.
        anchor = fragment(":day - CAST(:since_start AS INTEGER) + :to_anchor",
                          day=day, since_start=since_start, to_anchor=3 if four_days else 0)
        number = fragment("(dayofyear(:date) - 1) // 7 + 1", date=anchor)
        if from_one:
            return number
        return fragment("CASE WHEN year(:anchor) < year(:day) THEN 0 WHEN year(:anchor) > year(:day) THEN 53 "
                        "ELSE :number END", anchor=anchor, day=day, number=number)

    return fragment("CAST(:week AS BIGINT)", week=let(fragment("CAST(:local AS DATE)", local=local), whole))


def _week(given: ScalarCall) -> Tree:
    mode = given.constant(1)
    return _week_number(_local(given), mode if isinstance(mode, int) else 0)


FUNCTIONS = (
    function("now", (), always(timestamp()), _now, "now() = now()", "The time at which the statement began."),
    function("today", (), always(timestamp()), _today, "today() <= now()",
             "Midnight of the current day in the session's time zone."),
    function("timezone", (), always(DataType(Kind.VARCHAR, 64)), _timezone, "timezone()",
             "The session's time zone."),
    function("timediff", (_TIME, _TIME, Argument("unit", duration=True, optional=True)), always(BIGINT),
             near(_timediff), "timediff('2024-01-02', '2024-01-01', 1h)",
             "The first time minus the second in units of `unit`, truncated towards zero."),
    function("timetruncate",
             (_TIME, Argument("unit", duration=True),
               Argument("use_zone", INTEGER_KINDS, literal=True, choices=ZERO_ONE, optional=True)),
             always(timestamp()), near(_timetruncate), "timetruncate(ts, 1h) FROM m WHERE v = 3",
             "The time truncated to a whole 1b, 1u, 1a, 1s, 1m, 1h, 1d or 1w. Days and weeks are those of the "
             "session's time zone, or of UTC if the third argument is 0."),
    function("week", (_TIME, Argument("mode", INTEGER_KINDS, literal=True, low=0, high=7, optional=True)),
             always(BIGINT), near(_week), "week('2024-01-07')",
             "The number of the week. The mode, 0 to 7, selects how weeks are counted, as in MySQL."),
    function("weekofyear", (_TIME,), always(BIGINT), near(lambda given: _week_number(_local(given), 3)),
             "weekofyear('2024-01-07')", "The number of the ISO week, 1 to 53."),
    function("weekday", (_TIME,), always(BIGINT),
             near(lambda given: fragment("CAST(isodow(:local) - 1 AS BIGINT)", local=_local(given))),
             "weekday('2024-01-07')", "The day of the week, 0 is Monday."),
    function("date", (_TIME,), always(DataType(Kind.VARCHAR, 10)),
             near(lambda given: fragment("strftime(:local, '%Y-%m-%d')", local=_local(given))), "date('2024-01-07')",
             "The date of a time in the session's time zone, as `yyyy-mm-dd`."),
    function("dayofweek", (_TIME,), always(BIGINT),
             near(lambda given: fragment("CAST(dayofweek(:local) + 1 AS BIGINT)", local=_local(given))),
             "dayofweek('2024-01-07')", "The day of the week, 1 is Sunday."),
)
