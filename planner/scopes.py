"""What names mean in the clauses of a query: over rows, over groups, over picked rows; and how calls are told apart."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

from sqlglot import exp

from penstock.common.errors import InvalidStatementError, NotFoundError, Position
from penstock.planner.binder import Builder, Relation, RelColumn, find_column, is_pseudo, qualifier_of
from penstock.planner.plan import SqlExpr
from penstock.planner.user_functions import function_of
from penstock.sql.functions import FunctionSpec
from penstock.sql.schema import Session
from penstock.sql.types import BIGINT, DataType, Precision, timestamp

ILLEGAL_AGGREGATE = 0x2608
NOT_SINGLE_GROUP = 0x260C
NESTED_AGGREGATE = 0x2627
NOT_ALLOWED_FUNCTION = 0x2654
NO_TIME_LINE = 0x2650

TIME_NAMES = ("_rowts", "_c0")
WINDOW_NAMES = ("_wstart", "_wend", "_wduration")
QUERY_NAMES = ("_qstart", "_qend", "_qduration")
INTERP_NAMES = ("_irowts", "_isfilled", "_irowts_origin")
FAR = 2**63 - 1

Bounds = tuple[int | None, int | None]


def vector_spec(node: object) -> FunctionSpec | None:
    """Returns the function if the node is a call that looks at several rows, else None."""
    if not isinstance(node, exp.Anonymous):
        return None
    spec = function_of(node)
    return spec if spec is not None and spec.category in ("aggregate", "selection", "timeseries") else None


def vector_calls(node: exp.Expression) -> Iterator[exp.Anonymous]:
    """Yields the outermost calls of aggregate, selection and time-series functions."""
    if vector_spec(node) is not None:
        assert isinstance(node, exp.Anonymous)
        yield node
        return
    for child in node.iter_expressions():
        yield from vector_calls(child)


def columns_of(node: exp.Expression) -> Iterator[exp.Column]:
    """Yields the column references that are not inside of such a call."""
    if vector_spec(node) is not None:
        return
    if isinstance(node, exp.Column):
        yield node
        return
    for child in node.iter_expressions():
        yield from columns_of(child)


def replaced_columns(node: exp.Expression, by_name: Mapping[str, exp.Expression]) -> exp.Expression:
    """Returns the expression with others in place of unqualified columns outside of such calls, by their names."""
    if vector_spec(node) is not None:
        return node
    if isinstance(node, exp.Column):
        found = by_name.get(node.name) if qualifier_of(node) is None else None
        return node if found is None else exp.Paren(this=found.copy())
    copied = node.copy()
    for name, value in list(copied.args.items()):
        if isinstance(value, exp.Expression):
            copied.set(name, replaced_columns(value, by_name))
        elif isinstance(value, list):
            copied.set(name, [replaced_columns(item, by_name) if isinstance(item, exp.Expression) else item
                              for item in value])
    return copied


def unwrapped(node: exp.Expression) -> exp.Expression:
    """Returns the expression without parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def conjuncts(node: exp.Expression | None) -> Iterator[exp.Expression]:
    """Yields the conditions that AND joins."""
    if node is None:
        return
    node = unwrapped(node)
    if isinstance(node, exp.And):
        yield from conjuncts(node.this)
        yield from conjuncts(node.expression)
    else:
        yield node


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
        if self.relation is None or not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            return None
        if is_pseudo(node, *TIME_NAMES):
            return self.relation.time
        if is_pseudo(node, *WINDOW_NAMES, *QUERY_NAMES, *INTERP_NAMES):
            return None
        return find_column(self.relation, node.this.this, qualifier_of(node), node, self.builder)

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        if self.relation is None:
            raise self.builder.error(f"there is no column {name} without FROM", node, code=0x2602)
        return find_column(self.relation, name, qualifier, node, self.builder).use()

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        if name == "tbname":
            if self.relation is None:
                raise self.builder.error("tbname needs FROM", node, code=0x2602)
            return find_column(self.relation, name, qualifier_of(node), node, self.builder).use()
        if name in TIME_NAMES:
            if self.relation is None or self.relation.time is None:
                raise self.builder.error(f"{name} needs a time line", node, code=NO_TIME_LINE)
            return self.relation.time.use()
        if name in QUERY_NAMES:
            first = -FAR if self.bounds[0] is None else self.bounds[0]
            last = FAR if self.bounds[1] is None else self.bounds[1]
            if name == "_qduration":
                return SqlExpr(f"{min(last - first, FAR)}::BIGINT", BIGINT)
            return SqlExpr(f"{first if name == '_qstart' else last}::BIGINT", timestamp(self.precision))
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

    def within(self, clause: str) -> RowScope:
        """Returns the same names for another clause."""
        return RowScope(self.relation, self.builder, clause, self.bounds)


def fingerprint(node: object, scope: RowScope) -> Hashable:
    """Returns a value that is equal for expressions that mean the same, however they are written."""
    if isinstance(node, exp.Paren):
        return fingerprint(node.this, scope)
    if isinstance(node, exp.Column):
        try:
            column = scope.find(node)
        except (InvalidStatementError, NotFoundError):
            column = None
        if column is not None:
            return ("column", id(column))
        return ("name", str(node.name), qualifier_of(node))
    if isinstance(node, exp.Expression):
        parts = tuple((key, fingerprint(value, scope)) for key, value in sorted(node.args.items())
                      if value is not None and value is not False)
        return (type(node).__name__, parts)
    if isinstance(node, list):
        return tuple(fingerprint(item, scope) for item in node)
    return node if isinstance(node, Hashable) else repr(node)


@dataclass(frozen=True, slots=True)
class Key:
    """One value that all rows of a group share: its column in the CTEs, and how expressions may name it.

    `partitions`: it tells groups apart; the state of a state window does not.
    """

    column: str
    type: DataType
    mark: Hashable
    alias: str | None
    text: str
    is_time: bool = False
    partitions: bool = True

    def use(self) -> SqlExpr:
        """Returns the key as an expression over the groups."""
        return SqlExpr(self.column, self.type)


PLACEHOLDER = "\x00key"


def with_placeholders(node: exp.Expression, keys: list[Key], scope: RowScope) -> exp.Expression:
    """Returns the expression with a marked column in place of each part that is a partition or group key."""
    if not keys:
        return node
    return _replace(node.copy(), keys, scope)


def _replace(node: exp.Expression, keys: list[Key], scope: RowScope) -> exp.Expression:
    if vector_spec(node) is not None:
        return node
    mark = fingerprint(node, scope)
    for index, key in enumerate(keys):
        if key.mark == mark:
            column = exp.Column(this=exp.Identifier(this=f"{PLACEHOLDER}{index}", quoted=True))
            column.meta.update(node.meta)
            return column
    for name, value in list(node.args.items()):
        if isinstance(value, exp.Expression):
            node.set(name, _replace(value, keys, scope))
        elif isinstance(value, list):
            node.set(name, [_replace(item, keys, scope) if isinstance(item, exp.Expression) else item
                            for item in value])
    return node


def key_of(name: str, keys: list[Key]) -> Key | None:
    """Returns the key that a placeholder or an alias names."""
    if name.startswith(PLACEHOLDER):
        return keys[int(name[len(PLACEHOLDER):])]
    return next((key for key in keys if key.alias == name), None)
