"""What names mean in the clauses of a query: over rows, over groups, over picked rows; and how calls are told apart."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.common.errors import InvalidStatementError, NotFoundError, Position
from penstock.planner.bind.binder import (
    STAR,
    Builder,
    Inner,
    Relation,
    RelColumn,
    find_column,
    qualifier_of,
)
from penstock.planner.bind.expressions import compile_expression, condition_tree
from penstock.planner.bind.user_functions import function_of
from penstock.planner.duckdb_sql.duckdb_tree import column as column_tree
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.pseudo import FAR, names_of, pseudo_column
from penstock.planner.functions.table import FunctionSpec
from penstock.sql.schema import Session
from penstock.sql.tree.expression_nodes import PSEUDO_COLUMNS, Given
from penstock.sql.tree.statements import Query
from penstock.sql.tree.walking import conjuncts, copied, found_in, parts_of, unwrapped
from penstock.sql.types import BOOL, DataType, Precision

ILLEGAL_AGGREGATE = 0x2608
NOT_SINGLE_GROUP = 0x260C
NESTED_AGGREGATE = 0x2627
NOT_ALLOWED_FUNCTION = 0x2654
NO_TIME_LINE = 0x2650

TIME_NAMES = names_of("row")
WINDOW_NAMES = names_of("window")
QUERY_NAMES = names_of("range")
INTERP_NAMES = names_of("instant")

Bounds = tuple[int | None, int | None]
MAX_STAND_INS = 1000
"""How often names of the SELECT list may stand for its expressions, which may have such names."""


def vector_spec(node: object) -> FunctionSpec | None:
    """Returns the function if the node is a call that looks at several rows, perhaps with FILTER, else None."""
    if isinstance(node, exp.Filter):
        node = node.this
    if not isinstance(node, exp.Anonymous):
        return None
    spec = function_of(node)
    return spec if spec is not None and spec.category in ("aggregate", "selection", "timeseries") else None


def require_vector(node: exp.Expression) -> FunctionSpec:
    """Returns the function of a call that is known to look at several rows."""
    spec = vector_spec(node)
    assert spec is not None
    return spec


def _looks_at_rows(node: exp.Expression) -> bool:
    return vector_spec(node) is not None


def replaced(
    node: exp.Expression, replacement: Callable[[exp.Expression], exp.Expression | None]
) -> exp.Expression:
    """Returns the expression with others in place of parts, from the outside to the inside; itself if there are none.

    `replacement` returns what stands for a part, whose own parts are left alone then: None to look into them, the
    part itself to keep it as it is. Queries within stay as they are. Nothing calls itself over the tree.
    """
    found = replacement(node)
    if found is not None:
        return found
    if not _replaces_any(node, replacement):
        return node
    root = copied(node)
    pending = [root]
    while pending:
        part = pending.pop()
        for name, value in list(part.args.items()):
            if isinstance(value, exp.Expression):
                found = replacement(value)
                if found is None:
                    if not is_query(value):
                        pending.append(value)
                elif found is not value:
                    part.set(name, found)
            elif isinstance(value, list):
                items = [item if isinstance(item, exp.Expression) else None for item in value]
                others = [None if item is None else replacement(item) for item in items]
                pending += [item for item, other in zip(items, others, strict=True)
                            if item is not None and other is None]
                if any(other is not None and other is not item for item, other in zip(items, others, strict=True)):
                    part.set(name, [given if other is None else other
                                    for given, other in zip(value, others, strict=True)])
    return root


def _replaces_any(
    node: exp.Expression, replacement: Callable[[exp.Expression], exp.Expression | None]
) -> bool:
    pending = [node]
    while pending:
        for part in parts_of(pending.pop()):
            found = replacement(part)
            if found is None:
                if not is_query(part):
                    pending.append(part)
            elif found is not part:
                return True
    return False


def vector_calls(node: exp.Expression) -> Iterator[exp.Anonymous]:
    """Yields the outermost calls of aggregate, selection and time-series functions."""
    return (part for part in _outermost(node) if isinstance(part, exp.Anonymous))


def columns_of(node: exp.Expression) -> Iterator[exp.Column]:
    """Yields the column references that are not inside of such a call."""
    return (part for part in _outermost(node) if isinstance(part, exp.Column))


def is_query(node: object) -> bool:
    """Whether the node is a query of its own, in which names mean something else."""
    return isinstance(node, Query)


def unfiltered(node: exp.Filter, builder: Builder | None = None) -> exp.Anonymous:
    """Returns a call with FILTER as one that takes no other rows: it has the `condition`.

    Functions that take their value from one row, or go along rows, have NULL in other rows instead, and pass over it.
    Raises InvalidStatementError, if there is a builder, for those that don't.
    """
    call, condition = node.this, node.expression.this
    spec = vector_spec(call)
    if builder is not None and (spec is None or spec.category == "timeseries" or not call.expressions or (
            spec.selects is not None and not spec.selects.present)):
        raise builder.error(f"{call.this}() takes no FILTER", node, hint="it is for aggregates")
    if spec is not None and not spec.has_companions and spec.by_stretches is None:
        found = copied(call)
        found.set("condition", copied(condition))
        return found
    first, *others = call.expressions or [exp.Null()]
    value = exp.Literal.number(1) if isinstance(first, exp.Star) else copied(first)
    chosen = exp.Case(ifs=[exp.If(this=copied(condition), true=value)])
    made = exp.Anonymous(this=call.this, expressions=[chosen, *map(copied, others)])
    made.meta.update(call.meta)
    for part in (chosen, chosen.args["ifs"][0]):
        part.meta.update(node.meta)
    return made


QUERIES = (exp.Subquery, exp.Exists, exp.Any, exp.All)
"""What has a query, in an expression."""


def has_query(node: exp.Expression | None) -> bool:
    """Whether there is a query in an expression."""
    return node is not None and bool(found_in(node, *QUERIES))


def has_given(node: exp.Expression | None) -> bool:
    """Whether a value of an expression is given when the plan runs."""
    return node is not None and bool(found_in(node, Given))


def _outermost(node: exp.Expression) -> Iterator[exp.Expression]:
    """Yields such calls and column references, and looks into neither, nor into queries."""
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, exp.Column) or (isinstance(part, exp.Anonymous) and _looks_at_rows(part)):
            yield part
        elif isinstance(part, exp.Window):
            inner = part.this
            while not isinstance(inner, exp.Anonymous):
                pending += [other for other in parts_of(inner) if other is not inner.this]
                inner = inner.this
            pending += [other for other in parts_of(part) if other is not part.this]
            pending += inner.expressions
        elif isinstance(part, exp.Filter) and _looks_at_rows(part):
            yield unfiltered(part)
        elif not part.is_primitive and not is_query(part):
            pending += reversed(parts_of(part))


def replaced_columns(node: exp.Expression, by_name: Mapping[str, exp.Expression]) -> exp.Expression:
    """Returns the expression with others in place of unqualified columns outside of such calls, by their names."""
    def replacement(part: exp.Expression) -> exp.Expression | None:
        if vector_spec(part) is not None:
            return part
        if not isinstance(part, exp.Column):
            return None
        found = by_name.get(part.name) if qualifier_of(part) is None else None
        return part if found is None else exp.Paren(this=copied(found))

    return replaced(node, replacement)


def equalled(node: exp.Expression) -> tuple[exp.Expression, list[exp.Expression]] | None:
    """Returns what `=` or IN compares, a column if it has one, and the values that it may equal; None for other
    conditions, and for IN of a query."""
    if isinstance(node, exp.EQ):
        left, right = unwrapped(node.this), unwrapped(node.expression)
        return (left, [right]) if isinstance(left, exp.Column) else (right, [left])
    return (unwrapped(node.this), node.expressions) if isinstance(node, exp.In) and node.expressions else None


def implied(node: exp.Expression | None) -> Iterator[exp.Expression]:
    """Yields the conditions that AND joins, and those which every side of an OR among them has."""
    for part in conjuncts(node):
        yield part
        if isinstance(part, exp.Or):
            yield from _common(part)


def _common(node: exp.Or) -> list[exp.Expression]:
    """Returns the conditions that every side of an OR has."""
    found: list[exp.Expression] | None = None
    pending: list[exp.Expression] = [node]
    while pending and found != []:
        part = unwrapped(pending.pop())
        if isinstance(part, exp.Or):
            pending += [part.this, part.expression]
        else:
            side = list(conjuncts(part))
            found = side if found is None else [condition for condition in found if condition in side]
    return found or []


class RowScope:
    """Names in expressions over single rows. `clause` is what error messages call the place."""

    def __init__(self, relation: Relation | None, builder: Builder, clause: str, bounds: Bounds = (None, None)) -> None:
        self.relation = relation
        self.builder = builder
        self.clause = clause
        self.bounds = bounds
        self.session: Session = builder.session
        self.precision: Precision = relation.precision if relation is not None else "ms"

    def position(self, node: exp.Expression) -> Position | None:
        return self.builder.position(node)

    def find(self, node: exp.Expression) -> RelColumn | None:
        """Returns the column that a reference means, None for what is not a column; raises if it is unknown."""
        identifier = node.this if isinstance(node, exp.Column) else None
        if self.relation is None or not isinstance(identifier, exp.Identifier):
            return None
        name = identifier.this
        if name in PSEUDO_COLUMNS and not identifier.quoted:
            if name in TIME_NAMES:
                return self.time_of(node)
            if name != "tbname" and not self.has_column(name):
                return None
        if self.alias(node) is not None:
            return None
        return self._look_up(name, qualifier_of(node), node)

    def _look_up(self, name: str, qualifier: str | None, node: exp.Expression) -> RelColumn:
        """Returns the column that a name means here, or in a query around this one."""
        assert self.relation is not None
        try:
            return find_column(self.relation, name, qualifier, node, self.builder)
        except NotFoundError:
            for around in self.builder.around:
                found = around.find(name, qualifier, node)
                if found is not None and self.clause == "ON" and found.side in ("l", "r"):
                    raise self.builder.error(
                        "a sub-query in ON can't use columns of the join around it in ON", node) from None
                if found is not None:
                    return found
            raise

    def alias(self, node: exp.Expression) -> exp.Expression | None:
        """Returns what a name means that is no column, but stands in the SELECT list."""
        aliases = self.builder.aliases
        found = aliases.get(node.name) if aliases else None
        if found is None or qualifier_of(node) is not None or node.meta.keys() & {STAR, KEY} or (
                node.name in self.builder.standing_in or self.has_column(node.name)):
            return None
        return found

    def stand_in(self, name: str, expression: exp.Expression) -> SqlExpr:
        """Compiles what an alias stands for. Raises InvalidStatementError if very many do."""
        builder = self.builder
        builder.stand_ins += 1
        if builder.stand_ins > MAX_STAND_INS:
            raise builder.error(f"names of the SELECT list stand for more than {MAX_STAND_INS:,} expressions",
                                expression)
        builder.standing_in.append(name)
        try:
            return compile_expression(expression, self)
        finally:
            builder.standing_in.pop()

    def inner(self, query: Query, node: exp.Expression, *, always_row: bool = True) -> Inner:
        """Plans a query in an expression, which may name columns of these rows; `always_row`: see `Builder`."""
        builder = self.builder
        if builder.plan_inner is None:
            raise builder.error("a sub-query is not allowed here", node)
        rows, kept = OuterRows(self), (builder.around, builder.called, builder.always_row, builder.aliases)
        builder.around, builder.called, builder.always_row = (rows, *builder.around), None, always_row
        try:
            return builder.plan_inner(query)
        finally:
            builder.around, builder.called, builder.always_row, builder.aliases = kept
            if rows.called is not None:
                builder.called = rows.called

    def time_of(self, node: exp.Expression) -> RelColumn | None:
        """Returns the time line that `_rowts` means: the one of the table that it is said to be of."""
        if self.relation is None:
            return None
        qualifier = qualifier_of(node)
        lines = (self.relation.time, *(time for time, _ in self.relation.times))
        return next((time for time in lines if time is not None and qualifier in (None, time.qualifier)), None)

    def has_column(self, name: str) -> bool:
        """Whether rows have a column of this name: results of streams, for example, have one called `_wstart`."""
        return self.relation is not None and any(column.name == name for column in self.relation.columns)

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        if self.relation is None:
            raise self.builder.error(f"there is no column {name} without FROM", node, code=0x2602)
        alias = self.alias(node)
        if alias is not None:
            return self.stand_in(name, alias)
        return self._look_up(name, qualifier, node).use()

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        if name == "tbname":
            if self.relation is None:
                raise self.builder.error("tbname needs FROM", node, code=0x2602)
            return self._look_up(name, qualifier_of(node), node).use()
        if name in TIME_NAMES:
            time = self.time_of(node)
            if time is None:
                raise self.builder.error(f"{name} needs a time line", node, code=NO_TIME_LINE)
            return time.use()
        if self.has_column(name):
            return self.column(name, qualifier_of(node), node)
        if name in QUERY_NAMES:
            self.builder.require_known_times(name)
            first = -FAR if self.bounds[0] is None else self.bounds[0]
            last = FAR if self.bounds[1] is None else self.bounds[1]
            return pseudo_column(name, self.precision, first, last)
        if name in WINDOW_NAMES:
            raise self.builder.error(f"{name} is not allowed in {self.clause}", node,
                                     hint="it stands in the SELECT list of a query with a window")
        if name in INTERP_NAMES:
            raise self.builder.error(f"{name} is not allowed in {self.clause}", node,
                                     hint="it stands in the SELECT list of a query with INTERP")
        return None

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        outer = "another function over rows" if self.clause == "an argument" else self.clause
        code = NESTED_AGGREGATE if self.clause == "an argument" else ILLEGAL_AGGREGATE
        raise self.builder.error(f"{name}() is not allowed in {outer}", node, code=code)

    def over(self, node: exp.Window) -> SqlExpr:
        """Returns the value of a call with OVER, which only results of queries have."""
        raise self.builder.error(f"OVER is not allowed in {self.clause}", node,
                                 hint="it stands in the SELECT list, ORDER BY and QUALIFY")

    def multiply(self, node: exp.Anonymous) -> None:
        """Raises for a call that gives several rows: only results of queries have such ones."""
        raise self.builder.error(f"{node.this}() is not allowed in {self.clause}", node, code=NOT_ALLOWED_FUNCTION,
                                 hint="it stands in the SELECT list, and in FROM")

    def filtered(self, node: exp.Filter) -> exp.Anonymous:
        """Returns a call with FILTER as one without."""
        return unfiltered(node, self.builder)

    def within(self, clause: str) -> RowScope:
        """Returns the same names for another clause."""
        return RowScope(self.relation, self.builder, clause, self.bounds)


class OuterRows:
    """The names of a query that a sub-query in one of its expressions may use.

    `called` is what the sub-query calls the rows, None while it uses none of their columns.
    """

    def __init__(self, scope: RowScope) -> None:
        self._scope = scope
        self._around, self._name = scope.builder.around, scope.builder.called
        self.called: str | None = None
        self._columns: dict[tuple[str, str | None, str], RelColumn] = {}

    @property
    def relation(self) -> Relation | None:
        """The rows of the query around."""
        return self._scope.relation

    def find(self, name: str, qualifier: str | None, node: exp.Expression) -> RelColumn | None:
        """Returns the column of this name, or None. Raises as the query around does where it can't use that."""
        if KEY in node.meta:  # it is a key of the query within
            return None
        written = name, qualifier, node.text("db")
        known = self._columns.get(written)
        if known is not None:
            return known
        builder, around = self._scope.builder, self._scope.builder.around
        builder.around = self._around
        try:
            value = self._scope.column(name, qualifier, node)
        except NotFoundError:
            return None
        finally:
            builder.around = around
        if self._scope.clause == "an argument" or not isinstance(value.node, exp.Column):
            raise builder.error(f"a sub-query in {self._scope.clause} can't use columns of the query around it", node)
        side = value.node.table
        if not side:  # else it is of a query further out, or of a side of a join
            if self._name is None:
                self._name = builder.fresh("#outer")
            side = self.called = self._name
        found = RelColumn(name, value.type, value.node.name, qualifier, role="outer", used=True, side=side)
        self._columns[written] = found
        return found


def condition_of(node: exp.Expression, scope: RowScope) -> SqlExpr:
    """Returns a condition of WHERE and its kin, bound; raises as `condition_tree`."""
    return SqlExpr(condition_tree(node, scope), BOOL)


Mark = tuple[Hashable, ...]


def fingerprint(node: exp.Expression, scope: RowScope) -> Mark:
    """Returns a value that is equal for expressions that mean the same, however they are written.

    It is flat: nested values would be compared one in the other.
    """
    marks: list[Hashable] = []
    pending: list[object] = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, exp.Expression):
            own, parts = _own_mark(part, scope)
            marks.append(own)
            pending += parts
        elif isinstance(part, list):
            marks.append(("list", len(part)))
            pending += part
        else:
            marks.append(part if isinstance(part, Hashable) else repr(part))
    return tuple(marks)


def mark_of(column: RelColumn) -> Mark:
    """Returns the fingerprint of every expression that is this column."""
    return (("column", id(column)),)


def _own_mark(node: exp.Expression, scope: RowScope) -> tuple[Hashable, list[object]]:
    """Returns what tells a node from others, and its parts, which do so too."""
    node = unwrapped(node)
    if isinstance(node, exp.Column):
        return _column_mark(node, scope), []
    args = node.args
    given = [key for key in sorted(args) if args[key] is not None and args[key] is not False]
    return (type(node).__name__, *given), [args[key] for key in given]


def _column_mark(column: exp.Column, scope: RowScope) -> Hashable:
    try:
        found = scope.find(column)
    except (InvalidStatementError, NotFoundError):
        found = None
    return ("name", str(column.name), qualifier_of(column)) if found is None else mark_of(found)[0]


@dataclass(frozen=True, slots=True)
class GroupKey:
    """One value that all rows of a group share: its column in the rows, and how expressions may name it.

    `partitions`: it tells groups apart; the state of a state window does not.
    """

    column: str
    type: DataType
    mark: Mark
    alias: str | None
    text: str
    is_time: bool = False
    partitions: bool = True

    def use(self) -> SqlExpr:
        """Returns the key as an expression over the groups."""
        return SqlExpr(column_tree(self.column), self.type)


#: What a reference in place of a key knows: the number of the key.
KEY = "key"


def with_placeholders(node: exp.Expression, keys: Sequence[GroupKey], scope: RowScope) -> exp.Expression:
    """Returns the expression with a reference in place of each part that is a partition or group key; see `key_of`."""
    if not keys:
        return node
    firsts = {key.mark[0] for key in keys}

    def replacement(part: exp.Expression) -> exp.Expression | None:
        if vector_spec(part) is not None:
            return part
        own, _ = _own_mark(part, scope)
        if own not in firsts:
            return None  # and what is in it need not be looked at for this
        mark = fingerprint(part, scope)
        index = next((index for index, key in enumerate(keys) if key.mark == mark), None)
        if index is None:
            return None
        reference = exp.Column(this=exp.Identifier(this=keys[index].column, quoted=True))
        reference.meta.update(part.meta)
        reference.meta[KEY] = index
        return reference

    return replaced(node, replacement)


def key_of(node: exp.Expression, keys: Sequence[GroupKey]) -> GroupKey | None:
    """Returns the key that a reference stands for, or an alias names."""
    if KEY in node.meta:
        number: int = node.meta[KEY]
        return keys[number]
    if not keys:
        return None
    return next((key for key in keys if key.alias == node.name), None)
