"""Which columns tell rows of a query's answer apart, by what the query is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from penstock.planner.bind.query_parts import is_star
from penstock.planner.bind.scopes import vector_calls, vector_spec
from penstock.planner.query.select import plan_query
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parser import parse_query
from penstock.sql.schema import CatalogView, Session, Table, View
from penstock.sql.tree.statements import (
    IntervalWindow,
    JoinSource,
    Name,
    PartitionItem,
    Query,
    Select,
    SessionWindow,
    SetOperation,
    Source,
    SubquerySource,
    TableSource,
    ValuesQuery,
)
from penstock.sql.tree.walking import found_in, unwrapped

TBNAME = "tbname"


@dataclass(frozen=True, slots=True)
class ResultKey:
    """`places`: of the columns among those of the answer. `timely`: none of them is ever NULL, so that a table with a
    time can have them."""

    places: tuple[int, ...]
    timely: bool = False


@dataclass(frozen=True, slots=True)
class _Relation:
    """What FROM calls `alias`. `key`: the columns that tell its rows apart; None if there may be equal rows."""

    alias: str
    names: Sequence[str]
    key: Sequence[str] | None
    timely: bool


def key_of(
    query: Query, count: int, catalog: CatalogView, session: Session, named: frozenset[str] = frozenset()
) -> ResultKey | None:
    """Returns the columns of which all rows of the answer have different values; None if there may be equal rows.

    `count`: of the answer's columns. `named`: what WITH around the query names.
    """
    everything = ResultKey(tuple(range(count)))
    if isinstance(query, ValuesQuery):
        return None
    if isinstance(query, SetOperation):
        return None if query.all else everything
    if query.distinct:
        return everything
    if any(call.this == "unnest" for item in query.items for call in found_in(item.expression, exp.Anonymous)):
        return None
    calls = [spec for item in query.items for call in vector_calls(item.expression)
             if (spec := vector_spec(call)) is not None]
    single = all(spec.category != "timeseries" and not spec.multi_row for spec in calls)
    grouped = query.group_by or query.window is not None or (query.partition_by and calls)
    if not grouped and calls and single:
        return everything  # there is one row
    relations = _Relations(catalog, session, named | {cte.name for cte in query.ctes}).of(query.source)
    if grouped:
        return _key_of_groups(query, relations) if single else None
    return _key_of_rows(query, count, relations)


def place_of(node: exp.Expression, query: Select, names: Collection[str] | None) -> int | None:
    """Returns which item of the SELECT list an expression of GROUP BY is.

    `names`: those of columns of rows, which go before aliases; None if they aren't known.
    """
    node = unwrapped(node)
    if isinstance(node, exp.Literal) and not node.is_string:
        place = int(node.name) - 1
        return place if 0 <= place < len(query.items) else None
    for place, item in enumerate(query.items):
        if unwrapped(item.expression) == node:
            return place
    if isinstance(node, exp.Column) and not node.table and names is not None and node.name not in names:
        return next((place for place, item in enumerate(query.items) if item.alias == node.name), None)
    return None


def _key_of_groups(query: Select, relations: Sequence[_Relation] | None) -> ResultKey | None:
    groups = query.group_by or query.partition_by
    if any(is_star(item.expression) for item in query.items):
        return None
    if len(groups) == 1 and isinstance(groups[0].expression, exp.Var):  # ALL
        return ResultKey(tuple(place for place, item in enumerate(query.items)
                               if next(vector_calls(item.expression), None) is None
                               and not found_in(item.expression, exp.Window)))
    names = None if relations is None else {name for relation in relations for name in relation.names}
    keys = [place_of(item.expression, query, names) for item in groups]
    if query.window is not None:
        if not isinstance(query.window, IntervalWindow | SessionWindow) and not _times_differ(groups, relations):
            return None  # windows of rows may start at the same time
        keys.insert(0, next((place for place, item in enumerate(query.items) if isinstance(item.expression, exp.Column)
                             and item.expression.name == "_wstart"), None))
    places = tuple(place for place in keys if place is not None)
    never_null = all(_is_tbname(item.expression) for item in groups)
    return ResultKey(places, timely=query.window is not None and never_null) if len(places) == len(keys) else None


def _times_differ(groups: Sequence[PartitionItem], relations: Sequence[_Relation] | None) -> bool:
    """Tells whether the rows of each group have different times."""
    if relations is None or len(relations) != 1 or not relations[0].timely:
        return False
    grouped = {item.expression.name for item in groups if isinstance(item.expression, exp.Column)}
    return len({*(relations[0].key or ())} - grouped) == 1


def _key_of_rows(query: Select, count: int, relations: Sequence[_Relation] | None) -> ResultKey | None:
    """Rows of FROM are told apart by what tells those of each of its tables apart, if all of that is shown."""
    if not relations:
        return None
    if any(star.args.get(part) for item in query.items for star in found_in(item.expression, exp.Star)
           for part in star.args):
        return None  # its columns are others than those of FROM
    shown = list(_shown(query, relations))
    wanted = [(relation.alias, name) for relation in relations for name in relation.key or ()]
    if len(shown) != count or not all(relation.key for relation in relations) or not all(
            column in shown for column in wanted):
        return None
    return ResultKey(tuple(dict.fromkeys(shown.index(column) for column in wanted)),
                     timely=len(relations) == 1 and relations[0].timely)


def _shown(query: Select, relations: Sequence[_Relation]) -> Iterator[tuple[str, str] | None]:
    """Yields of each column of the answer which column of which relation it is, None if it is none."""
    for item in query.items:
        node = unwrapped(item.expression)
        if is_star(node):
            table = node.args.get("table")
            for relation in relations:
                if table is None or table.name == relation.alias:
                    yield from ((relation.alias, name) for name in relation.names)
        elif isinstance(node, exp.Column):
            owners = [relation.alias for relation in relations if node.table in ("", relation.alias)
                      and (_is_tbname(node) or node.name in relation.names)]
            yield (owners[0], node.name) if len(owners) == 1 else None
        else:
            yield None


def _is_tbname(node: exp.Expression) -> bool:
    return isinstance(node, exp.Column) and node.name == TBNAME


@dataclass(frozen=True, slots=True)
class _Relations:
    catalog: CatalogView
    session: Session
    named: frozenset[str]

    def of(self, source: Source | None) -> list[_Relation] | None:
        """Returns the relations of FROM that the answer has columns of; None if one isn't known."""
        if isinstance(source, JoinSource):
            left = self.of(source.left)
            if source.variant in ("semi", "anti") and source.kind == "inner":
                return left
            right = self.of(source.right)
            # Rows of both sides without a partner may have keys of NULLs alone.
            alike = source.using or source.natural or source.kind == "full"
            return None if left is None or right is None or alike else [*left, *right]
        found = None
        if isinstance(source, SubquerySource):
            found = self._of_query(source)
        elif isinstance(source, TableSource) and (source.name.database or source.name.name not in self.named):
            found = self._of_name(source)
        return None if found is None else [found]

    def _of_name(self, source: TableSource) -> _Relation | None:
        database, alias = source.name.database or self.session.database or "", source.alias or source.name.name
        table = self.catalog.table(database, source.name.name)
        if table is not None:
            names = [column.name for column in (*table.columns, *table.tags)]
            return _Relation(alias, names, _names_of_key(table), timely=not table.keyed)
        view = self.catalog.view(database, source.name.name)
        return None if view is None else self._of_view(view, alias)

    def _of_view(self, view: View, alias: str) -> _Relation:
        query = parse_query(f"SELECT * FROM {print_sql(Name(view.name, view.database))}")
        names = [column.name for column in plan_query(query, self.catalog, Session()).columns]
        key = key_of(parse_query(view.text), len(names), self.catalog, replace(self.session, database=view.database))
        return _relation(alias, names, key)

    def _of_query(self, source: SubquerySource) -> _Relation | None:
        query = source.query
        if not isinstance(query, Select) or any(is_star(item.expression) for item in query.items):
            return None
        names = [item.alias or item.expression.name or item.name for item in query.items]
        names[:len(source.columns)] = source.columns
        return _relation(source.alias or "", names,
                         key_of(query, len(names), self.catalog, self.session, self.named))


def _relation(alias: str, names: Sequence[str], key: ResultKey | None) -> _Relation:
    return _Relation(alias, names, None if key is None else [names[place] for place in key.places],
                     timely=key is not None and key.timely)


def _names_of_key(table: Table) -> list[str]:
    return [*([TBNAME] if table.kind == "super" else []), *(column.name for column in table.key_columns)]
