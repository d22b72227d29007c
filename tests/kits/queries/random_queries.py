"""Random queries in Penstock's dialect beside the same questions in DuckDB's, over a table written plainly there.

What an expression means is said here a second time, in DuckDB's words: nothing of the planner is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hypothesis import strategies as st
from kits.basics.extreme_values import ends
from kits.queries.written_tables import CALENDAR, WHOLE, Design, literal

from penstock.sql.types import SIGNED, DataType, Kind

Draw = st.DrawFn
Family = Literal["number", "text", "bool", "time", "bytes", "other"]
NARROW = (Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.UTINYINT, Kind.USMALLINT, Kind.UINT)
#: Sums of numbers up to this are exact to nine digits in any order.
MODERATE = 1_000_000


def family_of(kind: Kind) -> Family:
    """What values of a kind may be compared with."""
    match kind:
        case Kind.VARCHAR | Kind.NCHAR:
            return "text"
        case Kind.BOOL:
            return "bool"
        case Kind.TIMESTAMP:
            return "time"
        case Kind.VARBINARY:
            return "bytes"
        case Kind.OTHER:
            return "other"
    return "number"


@dataclass(frozen=True)
class Term:
    """An expression: Penstock's SQL, DuckDB's, and the kind of its values."""

    ours: str
    theirs: str
    kind: Kind

    @property
    def family(self) -> Family:
        return family_of(self.kind)

    @property
    def double(self) -> str:
        """DuckDB's SQL of the number as DOUBLE."""
        return f"CAST({self.theirs} AS DOUBLE)"


@dataclass(frozen=True)
class Relation:
    """What FROM names, and the columns there.

    `stored`: those of rows of one table, which has `ts`, `tb`, `ord` too; `order`: what its rows have one each of.
    """

    ours: str
    theirs: str
    columns: tuple[Term, ...]
    stored: tuple[Term, ...] = ()
    order: str = "ts"

    def of(self, *families: Family) -> list[Term]:
        return [column for column in self.columns if column.family in families]


@dataclass(frozen=True)
class Question:
    """A query in both dialects. `ordered`: the order of its rows is given by all their values."""

    ours: str
    theirs: str
    kinds: tuple[Kind, ...]
    ordered: bool = False


def table(design: Design, ours: str, theirs: str, alias: str = "") -> Relation:
    """The super table as a relation, with tags, `tbname` and the timestamp."""
    dot = f"{alias}." if alias else ""
    own, columns = ([Term(f"{dot}{column.quoted}", f"{dot}{column.plain}", column.type.kind) for column in part]
                    for part in (design.columns, design.tags))
    columns += [Term(f"{dot}ts", f"{dot}ts", Kind.TIMESTAMP), Term(f"{dot}tbname", f"{dot}tb", Kind.VARCHAR)]
    return Relation(f"{ours} {alias}".strip(), f"{theirs} {alias}".strip(), (*own, *columns), tuple(own),
                    "ts, c0" if design.keyed else "ts")


# -- expressions ------------------------------------------------------------------------------------------------


def numbers(draw: Draw, relation: Relation, depth: int = 2) -> Term:
    """A number: a column, a constant, arithmetic, a function, CASE, or a cast."""
    known = relation.of("number")
    kinds = ["column"] * 3 if known else []
    kinds += ["constant", "length"] if relation.of("text") else ["constant"]
    if depth:
        kinds += ["+", "-", "*", "/", "%", "negative", "abs", "floor", "ceil", "sign", "sqrt", "pow", "case", "double",
                  "greatest", "least", "bits", "bigint", "mod", "round"]
    kind = draw(st.sampled_from(kinds))
    if kind == "column":
        return draw(st.sampled_from(known))
    if kind == "constant":
        return _constant(draw)
    if kind == "length":
        part = texts(draw, relation, 0)
        if draw(st.booleans()):
            return Term(f"char_length({part.ours})", f"length({part.theirs})", Kind.BIGINT)
        theirs = f"length({part.theirs}) * 4" if part.kind is Kind.NCHAR else f"strlen({part.theirs})"
        return Term(f"length({part.ours})", theirs, Kind.BIGINT)
    part = numbers(draw, relation, depth - 1)
    if kind in ("+", "-", "*", "/", "%", "mod"):
        return _arithmetic(kind, part, numbers(draw, relation, depth - 1))
    if kind in ("case", "greatest", "least", "bits"):
        return _of_several(draw, kind, relation, part, depth)
    return _of_one(kind, part)


def _constant(draw: Draw) -> Term:
    value = draw(st.sampled_from([0, 1, 2, -1, 100, 0.5, -1.5, 1e300, 2**63 - 1, -(2**63)]))
    theirs = f"CAST({value!r} AS {'BIGINT' if isinstance(value, int) else 'DOUBLE'})"
    return Term(f"({value!r})", theirs, Kind.BIGINT if isinstance(value, int) else Kind.DOUBLE)


def _arithmetic(operator: str, left: Term, right: Term) -> Term:
    """IEEE arithmetic of DOUBLEs, NULL where the divisor is 0."""
    if operator == "mod":
        return Term(f"mod({left.ours}, {right.ours})", f"({left.double} % nullif({right.double}, 0))", Kind.DOUBLE)
    divisor = f"nullif({right.double}, 0)" if operator in "/%" else right.double
    return Term(f"({left.ours} {operator} {right.ours})", f"({left.double} {operator} {divisor})", Kind.DOUBLE)


def _of_one(kind: str, part: Term) -> Term:
    match kind:
        case "negative":
            return Term(f"(-({part.ours}))", f"(-{part.double})", Kind.DOUBLE)
        case "double":
            return Term(f"({part.ours})::double", part.double, Kind.DOUBLE)
        case "sqrt":
            within = f"CASE WHEN {part.double} >= 0 THEN {part.double} END"
            return Term(f"sqrt({part.ours})", f"finite(sqrt({within}))", Kind.DOUBLE)
        case "pow":
            return Term(f"pow({part.ours}, 2)", f"finite(pow({part.double}, 2))", Kind.DOUBLE)
        case "sign" if part.kind is not Kind.DECIMAL:
            return Term(f"sign({part.ours})", f"CAST(sign({part.theirs}) AS {DataType(part.kind).duckdb()})", part.kind)
        case "bigint" if part.kind in NARROW:
            return Term(f"cast({part.ours} as bigint)", f"CAST({part.theirs} AS BIGINT)", Kind.BIGINT)
        case "abs" if part.kind in SIGNED:
            _, high = ends(part.kind)  # the least integer wraps
            theirs = (f"(CASE WHEN abs({part.theirs}::HUGEINT) <= {high} THEN TRY_CAST(abs({part.theirs}::HUGEINT) "
                      f"AS {DataType(part.kind).duckdb()}) ELSE {part.theirs} END)")
            return Term(f"abs({part.ours})", theirs, part.kind)
        case "abs" if part.kind not in WHOLE:
            return Term(f"abs({part.ours})", f"abs({part.theirs})", part.kind)
        case "floor" | "ceil" | "round" if part.kind in (Kind.FLOAT, Kind.DOUBLE):
            return Term(f"{kind}({part.ours})", f"{kind}({part.theirs})", part.kind)
        case "floor" | "ceil" | "round" if part.kind in WHOLE:
            return Term(f"{kind}({part.ours})", part.theirs, part.kind)
    return part


def _of_several(draw: Draw, kind: str, relation: Relation, part: Term, depth: int) -> Term:
    if kind == "bits":
        if part.kind not in NARROW:
            return part
        operator, mask = draw(st.sampled_from("&|")), draw(st.sampled_from([1, 255, -2]))
        return Term(f"({part.ours} {operator} ({mask}))",
                    f"(CAST({part.theirs} AS BIGINT) {operator} ({mask})::BIGINT)", Kind.BIGINT)
    other = numbers(draw, relation, depth - 1)
    if part.kind is not other.kind or part.kind is Kind.DECIMAL:
        part, other = _of_one("double", part), _of_one("double", other)
    if kind == "case":
        condition = conditions(draw, relation, depth - 1)
        return Term(f"(case when {condition.ours} then {part.ours} else {other.ours} end)",
                    f"(CASE WHEN {condition.theirs} THEN {part.theirs} ELSE {other.theirs} END)", part.kind)
    return Term(f"{kind}({part.ours}, {other.ours})",
                f"(CASE WHEN {part.theirs} IS NOT NULL AND {other.theirs} IS NOT NULL "
                f"THEN {kind}({part.theirs}, {other.theirs}) END)", part.kind)


def texts(draw: Draw, relation: Relation, depth: int = 1) -> Term:
    """A text: a column, a constant, or a function of texts."""
    known = relation.of("text")
    kinds = ["column"] * 3 if known else ["constant"]
    if depth:
        kinds += ["constant", "concat", "upper", "lower", "substr", "ltrim", "rtrim", "replace", "repeat", "case"]
    kind = draw(st.sampled_from(kinds))
    if kind == "column":
        return draw(st.sampled_from(known))
    if kind == "constant":
        value = draw(st.sampled_from(["", "x", "it's", "\\", "\U0001d11e", "ß"]))
        return Term(literal(value), _text(value), Kind.VARCHAR)
    part = texts(draw, relation, depth - 1)
    match kind:
        case "concat":
            other = texts(draw, relation, depth - 1)
            kinds_here = {part.kind, other.kind}
            ours = draw(st.sampled_from(["concat({}, {})", "({} || {})"])).format(part.ours, other.ours)
            return Term(ours, f"({part.theirs} || {other.theirs})",
                        Kind.NCHAR if Kind.NCHAR in kinds_here else Kind.VARCHAR)
        case "upper" | "lower":
            return Term(f"{kind}({part.ours})", f"{kind}({part.theirs})", part.kind)
        case "ltrim" | "rtrim":
            return Term(f"{kind}({part.ours})", f"{kind}({part.theirs}, ' ')", part.kind)
        case "substr":
            start, count = draw(st.integers(1, 4)), draw(st.integers(0, 3))
            return Term(f"substr({part.ours}, {start}, {count})", f"substring({part.theirs}, {start}, {count})",
                        part.kind)
        case "replace":
            return Term(f"replace({part.ours}, 'x', 'yy')", f"replace({part.theirs}, 'x', 'yy')", part.kind)
        case "repeat":
            return Term(f"repeat({part.ours}, 2)", f"repeat({part.theirs}, 2)", part.kind)
        case "case":
            condition = conditions(draw, relation, 0)
            return Term(f"(case when {condition.ours} then {part.ours} end)",
                        f"(CASE WHEN {condition.theirs} THEN {part.theirs} END)", part.kind)
    return part


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def conditions(draw: Draw, relation: Relation, depth: int = 1) -> Term:
    """A condition over one row, NULL where SQL says so."""
    kinds = ["null", "not null"]
    kinds += ["compare", "between", "in", "column"] if relation.of("number") else []
    kinds += ["text", "like"] if relation.of("text") else []
    kinds += ["bool"] if relation.of("bool") else []
    kinds += ["time"] if relation.of("time") else []
    kind = draw(st.sampled_from([*kinds, "and", "or", "not"] if depth else kinds))
    match kind:
        case "null" | "not null":
            part = draw(st.sampled_from(relation.columns))
            return _condition(f"{part.ours} is {kind}", f"{part.theirs} IS {kind}")
        case "and" | "or":
            left, right = conditions(draw, relation, depth - 1), conditions(draw, relation, depth - 1)
            return _condition(f"{left.ours} {kind} {right.ours}", f"{left.theirs} {kind} {right.theirs}")
        case "not":
            part = conditions(draw, relation, depth - 1)
            return _condition(f"not {part.ours}", f"NOT {part.theirs}")
        case "bool":
            part = draw(st.sampled_from(relation.of("bool")))
            about = draw(st.sampled_from(["", "= true", "is true", "is not false"]))
            return _condition(f"{part.ours} {about}", f"{part.theirs} {about}") if about else part
        case "time":
            part = draw(st.sampled_from(relation.of("time")))
            operator, value = draw(st.sampled_from(["<", ">=", "=", "<>"])), draw(st.sampled_from([-1, 0, 10**9]))
            return _condition(f"{part.ours} {operator} {value}", f"{part.theirs} {operator} {value}")
        case "text":
            left, right = texts(draw, relation), texts(draw, relation, 0)
            operator = draw(st.sampled_from(["=", "<>", "<", ">=", "is distinct from", "is not distinct from"]))
            return _condition(f"{left.ours} {operator} {right.ours}", f"{left.theirs} {operator} {right.theirs}")
        case "like":
            part = draw(st.sampled_from(relation.of("text")))
            pattern = draw(st.sampled_from(["x%", "%", "_", "%b%", ""]))
            verb = draw(st.sampled_from(["like", "not like", "ilike"]))
            return _condition(f"{part.ours} {verb} '{pattern}'", f"{part.theirs} {verb} '{pattern}'")
    return _about_numbers(draw, relation, kind)


def _condition(ours: str, theirs: str) -> Term:
    return Term(f"({ours})", f"({theirs})", Kind.BOOL)


def _about_numbers(draw: Draw, relation: Relation, kind: str) -> Term:
    part = numbers(draw, relation, 1)
    if kind == "between":
        return _condition(f"{part.ours} between -1 and 2", f"{part.double} BETWEEN -1 AND 2")
    if kind == "in":
        return _condition(f"{part.ours} in (0, 1, 100)", f"{part.double} IN (0, 1, 100)")
    other = draw(st.sampled_from(relation.of("number"))) if kind == "column" else _constant(draw)
    operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    if part.kind is Kind.FLOAT and kind != "column":  # a FLOAT meets a constant as FLOAT
        other = Term("(0.5)", "0.5::FLOAT", Kind.FLOAT)
    alike = part.kind is other.kind or (part.kind in WHOLE and other.kind in WHOLE)
    left, right = (part.theirs, other.theirs) if alike else (part.double, other.double)
    return _condition(f"{part.ours} {operator} {other.ours}", f"{left} {operator} {right}")


def times(draw: Draw, relation: Relation) -> Term:
    """A time moved or cut, or the time between two."""
    part, other = (draw(st.sampled_from(relation.of("time"))) for _ in range(2))
    kind = draw(st.sampled_from(["+", "-", "timetruncate", "timediff", "bigint"]))
    number, unit = draw(st.sampled_from([(1, "s"), (60, "m"), (3_600, "h")]))
    match kind:
        case "timetruncate":
            return Term(f"timetruncate({part.ours}, 1{unit})", f"window_start({part.theirs}, {number}, 0)", part.kind)
        case "timediff":
            return Term(f"timediff({part.ours}, {other.ours}, 1{unit})",
                        f"(({part.theirs} - {other.theirs}) // ({number} * units()))", Kind.BIGINT)
        case "bigint":
            return Term(f"cast({part.ours} as bigint)", part.theirs, Kind.BIGINT)
    return Term(f"({part.ours} {kind} 5{unit})", f"({part.theirs} {kind} 5 * {number} * units())", part.kind)


def others(draw: Draw, relation: Relation) -> Term:
    """A value of a type that only DuckDB has, or what is taken of one."""
    kinds = ["filtered", "reduced", "row", "field", "whole", "wide"] if relation.of("number") else []
    kinds += ["list", "slice", "pattern", "joined"] if relation.of("text") else []
    kinds += ["day", "part", "interval"] if relation.of("time") else []
    if not kinds:
        return draw(st.sampled_from(relation.columns))
    kind = draw(st.sampled_from(kinds))
    if kind in ("day", "part", "interval"):
        return _of_day(draw, kind, draw(st.sampled_from(relation.of("time"))))
    if kind in ("list", "slice", "pattern", "joined"):
        return _of_texts(kind, texts(draw, relation), texts(draw, relation, 0))
    part, other = (_of_one("double", numbers(draw, relation, 1)) for _ in range(2))
    ours, theirs = f"[{part.ours}, {other.ours}]", f"[{part.theirs}, {other.theirs}]"
    match kind:
        case "filtered":
            return Term(f"len(list_filter({ours}, x -> x > 1))", f"len(list_filter({theirs}, lambda x: x > 1))",
                        Kind.BIGINT)
        case "reduced":
            return Term(f"list_reduce({ours}, lambda a, x: greatest(a, x))",
                        f"(CASE WHEN {part.theirs} IS NOT NULL AND {other.theirs} IS NOT NULL "
                        f"THEN greatest({part.theirs}, {other.theirs}) END)", Kind.DOUBLE)
        case "row":
            return _condition(f"({part.ours}, 1) in (({other.ours}, 1), (0.5, 2))",
                              f"row({part.theirs}, 1) IN (row({other.theirs}, 1), row(0.5::DOUBLE, 2))")
        case "field":
            return Term(f"({{'a': {part.ours}, 'b': 1}}).a", part.theirs, Kind.DOUBLE)
        case "whole":
            known = draw(st.sampled_from(relation.of("number")))
            small = f"TRY_CAST({known.theirs} AS INTEGER)"
            return Term(f"(try_cast({known.ours} as int) // 3)", f"({small} // 3)", Kind.INT)
    return Term(f"(try_cast({part.ours} as hugeint) // 7)::varchar(40)",
                f"CAST(TRY_CAST({part.theirs} AS HUGEINT) // 7 AS VARCHAR)", Kind.VARCHAR)


def _of_day(draw: Draw, kind: str, part: Term) -> Term:
    if kind == "day":
        day = draw(st.sampled_from(["1970-01-01", "2024-02-29"]))
        return _condition(f"{part.ours}::date < date '{day}'", f"CAST(wall({part.theirs}) AS DATE) < DATE '{day}'")
    if kind == "part":
        name = draw(st.sampled_from(["year", "month", "day", "hour"]))
        return Term(f"extract({name} from {part.ours})", f"date_part('{name}', wall({part.theirs}))", Kind.BIGINT)
    return Term(f"({part.ours}::time + interval '1' hour)::varchar(40)",
                f"CAST(CAST(wall({part.theirs}) AS TIME) + INTERVAL 1 HOUR AS VARCHAR)", Kind.VARCHAR)


def _of_texts(kind: str, part: Term, other: Term) -> Term:
    items = f"{part.theirs}, {other.theirs}"
    match kind:
        case "list":
            return Term(f"[{part.ours}, {other.ours}]", f"[{items}]", Kind.OTHER)
        case "slice":
            return Term(f"[{part.ours}, {other.ours}][2:][1]", other.theirs, other.kind)
        case "pattern":
            return _condition(f"{part.ours} like '%' || {other.ours} escape '!'",
                              f"{part.theirs} LIKE ('%' || {other.theirs}) ESCAPE '!'")
    return Term(f"array_to_string(list_transform([{part.ours}, {other.ours}], x -> x || '.'), ',')",
                f"array_to_string(list_transform([{items}], lambda x: x || '.'), ',')", Kind.VARCHAR)


def anything(draw: Draw, relation: Relation) -> Term:
    """An expression of any type."""
    kind = draw(st.sampled_from(["column", "column", "number", "number", "text", "bool", "time", "other", "other"]))
    match kind:
        case "other":
            return others(draw, relation)
        case "number":
            return numbers(draw, relation)
        case "text" if relation.of("text"):
            return texts(draw, relation)
        case "time" if relation.of("time"):
            return times(draw, relation)
        case "bool":
            condition = conditions(draw, relation)
            return Term(f"(case when {condition.ours} then true when not {condition.ours} then false end)",
                        condition.theirs, Kind.BOOL)
    return draw(st.sampled_from(relation.columns))


# -- aggregates -------------------------------------------------------------------------------------------------


def aggregates(draw: Draw, relation: Relation) -> Term:
    """An aggregate; those that add take moderate numbers, whose sum doesn't depend on their order."""
    kinds = ["*", "count", "hyperloglog", "distinct"]
    kinds += ["sum", "avg", "stddev", "var_pop", "spread", "min", "max", "whole"] if relation.of("number") else []
    kinds += ["first", "last"] if relation.stored else []
    kind = draw(st.sampled_from(kinds))
    if kind == "*":
        return Term("count(*)", "count(*)", Kind.BIGINT)
    if kind == "distinct":
        part, condition = anything(draw, relation), conditions(draw, relation, 0)
        return draw(st.sampled_from([
            Term(f"count(distinct {part.ours})", f"count(DISTINCT {part.theirs})", Kind.BIGINT),
            Term(f"count(distinct {part.ours}) filter (where {condition.ours})",
                 f"count(DISTINCT {part.theirs}) FILTER (WHERE {condition.theirs})", Kind.BIGINT)]))
    if kind in ("min", "max"):
        known = relation.of("number", "text", "time")
        part = draw(st.sampled_from(known)) if draw(st.booleans()) else numbers(draw, relation)
        return Term(f"{kind}({part.ours})", f"{kind}({part.theirs})", part.kind)
    if kind in ("count", "hyperloglog", "first", "last"):
        part = anything(draw, relation)
        kind = "count" if kind == "hyperloglog" and part.family == "other" else kind
        if part.family == "other":  # streams keep texts of such values only
            part = Term(f"{part.ours}::varchar(200)", f"CAST({part.theirs} AS VARCHAR)", Kind.VARCHAR)
        if kind == "count":
            return Term(f"count({part.ours})", f"count({part.theirs})", Kind.BIGINT)
        if kind == "hyperloglog":
            return Term(f"hyperloglog({part.ours})", f"count(DISTINCT {part.theirs})", Kind.BIGINT)
        chosen, table = ("arg_min", "ord") if kind == "first" else ("arg_max", "-ord")
        return Term(f"{kind}({part.ours})", f"{chosen}({part.theirs}, ({relation.order}, {table}))", part.kind)
    part = numbers(draw, relation, 1)
    if kind == "spread":
        return Term(f"spread({part.ours})",
                    f"finite(CAST(max({part.theirs}) AS DOUBLE) - CAST(min({part.theirs}) AS DOUBLE))", Kind.DOUBLE)
    if kind == "whole":
        known = [column for column in relation.of("number") if column.kind in WHOLE]
        if not known:
            return Term("count(*)", "count(*)", Kind.BIGINT)
        part = draw(st.sampled_from(known))
        result = Kind.BIGINT if part.kind in SIGNED else Kind.UBIGINT
        return Term(f"sum({part.ours})", f"TRY_CAST(sum({part.theirs}::HUGEINT) AS {DataType(result).duckdb()})",
                    result)
    ours = f"(case when {part.ours} between -{MODERATE} and {MODERATE} then cast({part.ours} as double) end)"
    theirs = f"(CASE WHEN {part.double} BETWEEN -{MODERATE} AND {MODERATE} THEN {part.double} END)"
    return Term(f"{kind}({ours})", f"{'stddev_pop' if kind == 'stddev' else kind}({theirs})", Kind.DOUBLE)


# -- queries ----------------------------------------------------------------------------------------------------


def where(draw: Draw, relation: Relation) -> tuple[str, str]:
    """WHERE or nothing, in both dialects."""
    if not draw(st.booleans()):
        return "", ""
    condition = conditions(draw, relation)
    return f" where {condition.ours}", f" WHERE {condition.theirs}"


def rows(draw: Draw, relation: Relation, *, limited: bool = True) -> Question:
    """SELECT [DISTINCT] ... FROM ... [WHERE] [ORDER BY [LIMIT]]."""
    items = [anything(draw, relation) for _ in range(draw(st.integers(1, 4)))]
    distinct = "distinct " if draw(st.sampled_from([True, False, False])) else ""
    if distinct and relation.stored:
        items.append(relation.columns[0])  # without columns of rows, DISTINCT tells of child tables: see `tags`
    ours, theirs = where(draw, relation)
    return question(draw, items, distinct, f" from {relation.ours}{ours}", f" FROM {relation.theirs}{theirs}", limited)


def groups(draw: Draw, relation: Relation, *, limited: bool = True, windowed: bool = True) -> Question:
    """Aggregates with or without GROUP BY or PARTITION BY, HAVING, and, if they may be `windowed`, windows."""
    keys = [_key(draw, relation) for _ in range(draw(st.integers(0, 2)))]
    values = [aggregates(draw, relation) for _ in range(draw(st.integers(1, 4)))]
    if all(value.ours.startswith(("first(", "last(")) for value in values):
        values.append(Term("count(*)", "count(*)", Kind.BIGINT))  # nothing but ends of NULLs makes no row
    window = _window(draw, relation) if windowed and relation.stored and draw(st.booleans()) else None
    grouped = [*(window.bounds if window else ()), *keys]
    verb = "partition by" if window or draw(st.booleans()) else "group by"
    by_ours = f" {verb} {', '.join(key.ours for key in keys)}" if keys else ""
    by_ours += f" {window.text}" if window else ""
    by_theirs = ", ".join([*(key.theirs for key in keys), *([window.key] if window else [])])
    by_theirs = f" GROUP BY {by_theirs}" if grouped else ""
    if not grouped and not any(value.ours.startswith(("count(", "hyperloglog(")) for value in values):
        by_theirs = " HAVING count(*) > 0"  # nothing is counted, and so nothing makes no row
    if grouped and draw(st.sampled_from([True, False, False])):
        value = draw(st.sampled_from(values))
        more = " > 1" if value.family == "number" and draw(st.booleans()) else " is not null"
        by_ours += f" having {value.ours}{more}"
        by_theirs += f" HAVING {value.theirs}{more}"
    ours, theirs = where(draw, relation)
    source = f"{relation.theirs}{theirs}"
    if window:
        source = window.source(source, [key.theirs for key in keys])
    return question(draw, [*grouped, *values], "", f" from {relation.ours}{ours}{by_ours}",
                     f" FROM {source}{by_theirs}", limited and verb == "group by")


def windows(draw: Draw, design: Design, ours: str, theirs: str) -> Question:
    """What a stream may keep up to date: aggregates of windows over columns that are there from the beginning."""
    stored = table(design, ours, theirs)
    later = {column.quoted for column, since in zip(design.columns, design.since, strict=True) if since}
    known = [tuple(column for column in part if column.ours not in later) for part in (stored.columns, stored.stored)]
    relation = replace(stored, columns=known[0], stored=known[1])
    grouping = [column for column in relation.columns if column.family in ("text", "bool") or column.kind in WHOLE]
    keys = [draw(st.sampled_from(grouping))] if draw(st.booleans()) else []
    window = _window(draw, relation)
    while window.text.startswith("count") or (design.keyed and window.text.startswith("state")):
        window = _window(draw, relation)
    if window.text.startswith("state") and all(key.ours != "tbname" for key in keys):
        keys.append(relation.columns[-1])
    values = [*(aggregates(draw, relation) for _ in range(draw(st.integers(1, 3)))),
              Term("count(*)", "count(*)", Kind.BIGINT)]
    condition_ours, condition_theirs = where(draw, relation)
    by_ours = f" partition by {', '.join(key.ours for key in keys)}" if keys else ""
    by_theirs = ", ".join([*(key.theirs for key in keys), window.key])
    source = window.source(f"{relation.theirs}{condition_theirs}", [key.theirs for key in keys])
    start, end = window.bounds
    end = replace(end, theirs=f"{end.theirs} + {window.open_s} * units()")
    return question(draw, [start, end, *keys, *values], "",
                     f" from {relation.ours}{condition_ours}{by_ours} {window.text}",
                     f" FROM {source} GROUP BY {by_theirs}", limited=False)


def _key(draw: Draw, relation: Relation) -> Term:
    if draw(st.booleans()):
        return draw(st.sampled_from(relation.columns))
    condition = conditions(draw, relation, 0)
    return Term(f"(case when {condition.ours} then 'a' else 'b' end)",
                f"(CASE WHEN {condition.theirs} THEN 'a' ELSE 'b' END)", Kind.VARCHAR)


@dataclass(frozen=True)
class Window:
    """A window clause: its text, `_wstart` and `_wend`, what tells windows apart, and what that is told from.

    `open_s`: for so many seconds behind its last row a stream has the window end, where a query has it end there.
    """

    text: str
    bounds: tuple[Term, Term]
    key: str
    source: Callable[[str, Sequence[str]], str]
    open_s: int = 0


def _window(draw: Draw, relation: Relation) -> Window:
    kinds = ["fixed", "fixed", "sliding", "calendar", "calendar", "session", "count"]
    states = [column for column in relation.stored
              if column.family in ("text", "bool") or column.kind in WHOLE]
    kind = draw(st.sampled_from([*kinds, "state"] if states else kinds))
    match kind:
        case "fixed":
            width = draw(st.sampled_from([1, 3, 7, 60, 5400]))
            offset = draw(st.integers(0, width - 1))
            start = f"window_start(ts, {width}, {offset})"
            text = f"interval({width}s, {offset}s)" if offset else f"interval({width}s)"
            return Window(text, _bounds(start, f"{start} + {width} * units()"), start,
                          lambda source, keys: f"(FROM {source})")
        case "sliding":
            step = draw(st.sampled_from([1, 5, 60]))
            width = step * draw(st.integers(1, 4)) + draw(st.integers(0, step - 1))
            starts = f"range(window_start(ts, {step}, 0), ts - {width} * units(), -{step} * units())"
            return Window(f"interval({width}s) sliding({step}s)", _bounds("slid", f"slid + {width} * units()"), "slid",
                          lambda source, keys: f"(SELECT *, unnest({starts}) AS slid FROM (FROM {source}))")
        case "calendar":
            unit = draw(st.sampled_from(CALENDAR))
            return Window(f"interval(1{unit})", _bounds(f"any_value({unit})", f"any_value({unit}_end)"), unit,
                          lambda source, keys: f"(FROM {source}) JOIN calendar USING (ts)")
        case "session":
            gap = draw(st.sampled_from([1, 2, 5, 3600]))
            opens = f"coalesce(ts - lag(ts) OVER line > {gap} * units(), true)"
            return replace(_of_rows(f"session(ts, {gap}s)", relation.order, opens), open_s=gap)
        case "count":
            count = draw(st.integers(2, 5))
            return _of_rows(f"count_window({count})", relation.order, f"(row_number() OVER line - 1) % {count} = 0")
    state = draw(st.sampled_from(states))
    return _of_rows(f"state_window({state.ours})", relation.order,
                    f"(row_number() OVER line = 1 OR {state.theirs} IS DISTINCT FROM lag({state.theirs}) OVER line)",
                    f"{state.theirs} IS NOT NULL")


def _bounds(start: str, end: str) -> tuple[Term, Term]:
    return Term("_wstart", start, Kind.TIMESTAMP), Term("_wend", end, Kind.TIMESTAMP)


def _of_rows(text: str, order: str, opens: str, known: str = "true") -> Window:
    """Windows that rows open: `opens` says which, in the order of a line; rows without `known` are in none."""
    def source(source: str, keys: Sequence[str]) -> str:
        by = f"PARTITION BY {', '.join(keys)} " if keys else ""
        line = f"({by}ORDER BY {order.replace('ts', 'ts, ord', 1)})"
        return (f"(SELECT *, sum(opens::INT) OVER (line ROWS UNBOUNDED PRECEDING) AS number FROM "
                f"(SELECT *, {opens} AS opens FROM (FROM {source}) WHERE {known} WINDOW line AS {line}) "
                f"WINDOW line AS {line})")

    return Window(text, _bounds("min(ts)", "max(ts)"), "number", source)


def question(draw: Draw, items: Sequence[Term], distinct: str, ours: str, theirs: str, limited: bool) -> Question:
    """A SELECT of these items, under the names r0, r1, ...; perhaps ordered by all of them, and cut off."""
    listed_ours = ", ".join(f"{item.ours} r{n}" for n, item in enumerate(items))
    listed_theirs = ", ".join(f"{item.theirs} r{n}" for n, item in enumerate(items))
    ordered = limited and draw(st.sampled_from([True, False, False]))
    if ordered:
        ways = [draw(st.sampled_from(["", " desc"])) for _ in items]
        ours += " order by " + ", ".join(f"{n}{way}" for n, way in enumerate(ways, 1))
        theirs += " ORDER BY " + ", ".join(f"{n}{way or ' asc'} NULLS {'LAST' if way else 'FIRST'}"
                                           for n, way in enumerate(ways, 1))
        limit = draw(st.sampled_from(["", " limit 3", " limit 2 offset 1", " limit 1 + 1 offset 2 - 1", " limit 40 %"]))
        ours, theirs = ours + limit, theirs + limit
    return Question(f"select {distinct}{listed_ours}{ours}", f"SELECT {distinct}{listed_theirs}{theirs}",
                    tuple(item.kind for item in items), ordered)


def joins(draw: Draw, design: Design, ours: str, theirs: str) -> Relation:
    """The table joined with itself on equal times, and perhaps on more."""
    left, right = table(design, ours, theirs, "a"), table(design, ours, theirs, "b")
    kind = draw(st.sampled_from(["inner", "left", "right", "full"]))
    both = Relation("", "", (*left.columns, *right.columns))
    on_ours, on_theirs = "a.ts = b.ts", "a.ts = b.ts"
    if draw(st.booleans()):
        condition = conditions(draw, both, 0)
        on_ours, on_theirs = f"{on_ours} and {condition.ours}", f"{on_theirs} AND {condition.theirs}"
    return replace(both, ours=f"{left.ours} {kind} join {right.ours} on {on_ours}",
                   theirs=f"{left.theirs} {kind} JOIN {right.theirs} ON {on_theirs}")


def inner(draw: Draw, relation: Relation) -> Relation:
    """A query as a relation: its columns are its result."""
    question = draw(st.sampled_from([rows, groups]))(draw, relation, limited=False)
    columns = tuple(Term(f"r{n}", f"r{n}", kind) for n, kind in enumerate(question.kinds))
    return Relation(f"({question.ours})", f"({question.theirs})", columns)


def tags(draw: Draw, design: Design, ours: str, theirs: str) -> Question:
    """What differs in the child tables, which have tags without having rows."""
    relation = table(design, ours, f"{theirs}_children")
    relation = replace(relation, columns=relation.columns[len(design.columns):-2] + relation.columns[-1:])
    items = [draw(st.sampled_from(relation.columns)) for _ in range(draw(st.integers(1, 3)))]
    where_ours, where_theirs = where(draw, relation)
    return question(draw, items, "distinct ", f" from {relation.ours}{where_ours}",
                     f" FROM {relation.theirs}{where_theirs}", limited=True)


def around(draw: Draw, relation: Relation) -> Question:
    """Rows with what is computed of those around them; what rows of equal order share, which alone is certain."""
    items = [draw(st.sampled_from(relation.columns)) for _ in range(draw(st.integers(1, 2)))]
    numbers_ = [column for column in relation.of("number") if column.kind in NARROW]
    windows_: list[str] = []
    for _ in range(draw(st.integers(1, 2))):
        functions = [("rank()",) * 2, ("dense_rank()",) * 2, ("count(*)",) * 2, ("percent_rank()",) * 2]
        value = draw(st.sampled_from(relation.columns))
        functions.append((f"count({value.ours})", f"count({value.theirs})"))
        if numbers_:
            value = draw(st.sampled_from(numbers_))
            condition = conditions(draw, relation, 0)
            functions += [(f"{name}({value.ours})", f"{name}({value.theirs})") for name in ("min", "max")]
            functions += [(f"sum({value.ours})", f"CAST(sum({value.theirs}) AS "
                           f"{'BIGINT' if value.kind in SIGNED else 'UBIGINT'})"),
                          (f"max({value.ours}) filter (where {condition.ours})",
                           f"max({value.theirs}) FILTER (WHERE {condition.theirs})")]
        ours, theirs = draw(st.sampled_from(functions))
        key, order = (draw(st.sampled_from(relation.columns)) for _ in range(2))
        by = draw(st.booleans())
        way = draw(st.sampled_from(["asc nulls first", "desc nulls last"]))
        over = [f"({'partition by ' + each[0] if by else ''} order by {each[1]} {way})"
                for each in ((key.ours, order.ours), (key.theirs, order.theirs))]
        if theirs.startswith("CAST("):
            theirs = theirs.replace(" AS ", f" OVER {over[1]} AS ", 1)
        else:
            theirs = f"{theirs} OVER {over[1]}"
        named = f"(partition by {key.ours})" if by else "()"
        if len(windows_) < 2 and draw(st.booleans()):
            name = f"w{len(windows_)}"
            windows_.append(f"{name} as {named}")
            over[0] = f"({name} order by {order.ours} {way})"
        items.append(Term(f"{ours} over {over[0]}", theirs, Kind.DOUBLE))
    found = where(draw, relation)
    found = found[0] + (f" window {', '.join(windows_)}" if windows_ else ""), found[1]
    return question(draw, items, "", f" from {relation.ours}{found[0]}", f" FROM {relation.theirs}{found[1]}",
                     limited=False)


def filtered(draw: Draw, relation: Relation) -> Question:
    """Aggregates of groups, over some of their rows each."""
    key = draw(st.sampled_from(relation.columns))
    items = [key]
    for _ in range(draw(st.integers(1, 3))):
        condition, column = conditions(draw, relation), draw(st.sampled_from(relation.columns))
        name = "count" if column.kind not in NARROW else draw(st.sampled_from(["count", "min", "max", "avg"]))
        ours, theirs = draw(st.sampled_from([
            ("count(*)", "count(*)"), (f"{name}({column.ours})", f"{name}({column.theirs})")]))
        items.append(Term(f"{ours} filter (where {condition.ours})", f"{theirs} FILTER (WHERE {condition.theirs})",
                          Kind.DOUBLE))
    return question(draw, items, "", f" from {relation.ours} group by {key.ours}",
                     f" FROM {relation.theirs} GROUP BY {key.theirs}", limited=False)


def named(draw: Draw, relation: Relation) -> Question:
    """A query over one that WITH names, which may be read twice."""
    part = inner(draw, relation)
    query = replace(part, ours="q", theirs="q")
    if draw(st.booleans()):
        more = draw(st.sampled_from(["r0 in (select r0 from q)", "exists (select 1 from q where r0 is null)"]))
        query = replace(query, ours=f"(select * from q where {more})", theirs=f"(SELECT * FROM q WHERE {more})")
    found = draw(st.sampled_from([rows, groups]))(draw, query)
    return replace(found, ours=f"with q as {part.ours} {found.ours}", theirs=f"WITH q AS {part.theirs} {found.theirs}")


def nested(draw: Draw, design: Design, ours: str, theirs: str) -> Question:
    """Rows with a sub-query over the same table in a condition, in the SELECT list, or in both; it may name the row."""
    outer, other = table(design, ours, theirs, "a"), table(design, ours, theirs, "b")
    both = Relation("", "", (*other.columns, *outer.columns))

    def source() -> tuple[str, str]:
        condition = conditions(draw, draw(st.sampled_from([both, other])))
        return (f"from {other.ours} where {condition.ours}", f"FROM {other.theirs} WHERE {condition.theirs}")

    def condition() -> Term:
        (inner_ours, inner_theirs), place = source(), draw(st.integers(0, len(outer.columns) - 1))
        left, right = outer.columns[place], other.columns[place]
        kinds = ["exists", "in", "not in"] + (["max", "any", "all"] if right.kind in (*WHOLE, Kind.VARCHAR) else [])
        kind = draw(st.sampled_from(kinds))
        if kind == "exists":
            return _condition(f"exists (select 1 {inner_ours})", f"EXISTS (SELECT 1 {inner_theirs})")
        if kind == "max":
            return _condition(f"{left.ours} >= (select max({right.ours}) {inner_ours})",
                              f"{left.theirs} >= (SELECT max({right.theirs}) {inner_theirs})")
        verb = kind if kind.endswith("in") else f"{draw(st.sampled_from(['=', '<>', '<', '>=']))} {kind}"
        return _condition(f"{left.ours} {verb} (select {right.ours} {inner_ours})",
                          f"{left.theirs} {verb} (SELECT {right.theirs} {inner_theirs})")

    items = [draw(st.sampled_from(outer.columns)) for _ in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        inner_ours, inner_theirs = source()
        items.append(Term(f"(select count(*) {inner_ours})", f"(SELECT count(*) {inner_theirs})", Kind.BIGINT))
    found = condition()
    return question(draw, items, "", f" from {outer.ours} where {found.ours}",
                     f" FROM {outer.theirs} WHERE {found.theirs}", limited=True)


def set_operation(draw: Draw, relation: Relation) -> Question:
    """Two queries of the same kinds of columns."""
    columns = [draw(st.sampled_from(relation.columns)) for _ in range(draw(st.integers(1, 3)))]
    parts = []
    for _ in range(2):
        ours, theirs = where(draw, relation)
        parts.append(question(draw, columns, "", f" from {relation.ours}{ours}", f" FROM {relation.theirs}{theirs}",
                               limited=False))
    verb = draw(st.sampled_from(["union", "intersect", "except"])) + draw(st.sampled_from(["", " all"]))
    first, second = parts
    return Question(f"{first.ours} {verb} {second.ours}", f"{first.theirs} {verb} {second.theirs}", first.kinds)


# -- answers ----------------------------------------------------------------------------------------------------

MACROS = """
CREATE MACRO finite(x) AS CASE WHEN isfinite(x) THEN x END;
CREATE MACRO units() AS {units}::BIGINT;
CREATE MACRO residue(x, width) AS ((x % width) + width) % width;
CREATE MACRO wall(ts) AS timezone('{zone}', TRY(make_timestamptz(CASE units() WHEN 1000 THEN ts * 1000
    WHEN 1000000 THEN ts ELSE (ts - residue(ts, 1000)) // 1000 END)));
CREATE MACRO window_start(ts, width, shift) AS ts - residue(ts - shift * units(), width * units());
"""


def same(got: Sequence[tuple[Any, ...]], want: Sequence[tuple[Any, ...]], *, ordered: bool) -> bool:
    """Whether these are the same rows; floating point numbers may differ in the last digits."""
    if len(got) != len(want):
        return False
    if not ordered:
        got, want = sorted(got, key=_rough), sorted(want, key=_rough)
    return all(_alike(left, right) for left, right in zip(got, want, strict=True))


def _rough(row: tuple[Any, ...]) -> list[tuple[str, float]]:
    """What rows are sorted by: numbers that differ in their last digits only, but one after the other."""
    return [(f"{value + 0.0:.6g}", value) if isinstance(value, float) else (repr(value), 0.0) for value in row]


def _alike(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    return all(_close(a, b) for a, b in zip(left, right, strict=True))


def _close(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right)) or math.isclose(
            left, right, rel_tol=1e-9, abs_tol=1e-6)
    return type(left) is type(right) and bool(left == right)
