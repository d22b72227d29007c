"""Prints statements so that the parser reads an equal tree back: for each class there is one function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.generator import Generator

from penstock.common.quantities import seconds_text, size_text
from penstock.sql.dialect.statement_forms import FORMS
from penstock.sql.dialect.tokenizer import NOT_AN_ALIAS
from penstock.sql.tree import statements as st
from penstock.sql.tree.expression_nodes import (
    ExpressionGenerator,
    TDengineJoin,
    TDengineSelect,
    quote_identifier,
    quote_string,
)
from penstock.sql.tree.node import Node
from penstock.sql.tree.statements import Duration
from penstock.sql.types import DataType

_PLAIN_NAME = re.compile("[a-z_][a-z0-9_]*")
_PLAIN_KEY = re.compile("[A-Za-z_][A-Za-z0-9_]*")
# Words that have a meaning of their own at some place where a name may stand.
_QUOTED_WORDS = NOT_AN_ALIAS | {"CONNECTION", "TO"}


def needs_quotes(name: str) -> bool:
    """Whether a name can't stand without back-quotes."""
    return _PLAIN_NAME.fullmatch(name) is None or name.upper() in _QUOTED_WORDS


def identifier(name: str) -> str:
    """Returns the name, in back-quotes if it can't stand without."""
    return quote_identifier(name) if needs_quotes(name) else name


def _words(*parts: str | None) -> str:
    return " ".join(part for part in parts if part)


def _listed(texts: Iterable[str]) -> str:
    return f"({', '.join(texts)})"


def _names(names: Iterable[str]) -> str:
    return _listed(identifier(name) for name in names)


def _sqls(to: Generator, nodes: Iterable[Node | Any]) -> str:
    return ", ".join(to.sql(node) for node in nodes)


def _clause(words: str, text: str) -> str:
    """Returns the words and the text behind them, nothing if there is no text."""
    return f"{words} {text}" if text else ""


def _string(words: str, text: str | None) -> str:
    return "" if text is None else f"{words} {quote_string(text)}"


def _given(words: str, value: object) -> str:
    return "" if value is None else f"{words} {value}"


def _name(_: Generator, name: st.Name) -> str:
    if name.database == st.TRIGGER:
        return st.TRIGGER + name.name
    return ".".join(identifier(part) for part in (name.database, name.name) if part is not None)


# --- queries ---


def _aliased(to: Generator, item: st.SelectItem | st.PartitionItem) -> str:
    return f"{to.sql(item.expression)}{_alias(item.alias)}"


def _alias(alias: str | None) -> str:
    return "" if alias is None else f" AS {identifier(alias)}"


def _order_item(to: Generator, item: st.OrderItem) -> str:
    nulls = "" if item.nulls_first is None else f"NULLS {'FIRST' if item.nulls_first else 'LAST'}"
    return _words(to.sql(item.expression), "DESC" if item.descending else "", nulls)


def _table_source(to: Generator, source: st.TableSource) -> str:
    cuts = ""
    if source.cuts is not None:
        cuts = f" BETWEEN CUT {quote_string(source.cuts[0])} AND {quote_string(source.cuts[1])}"
    return f"{to.sql(source.name)}{cuts}{_alias(source.alias)}"


def _external_source(to: Generator, source: st.ExternalSource) -> str:
    connection = to.sql(source.connection)
    return f"CONNECTION {connection} (TABLE {quote_string(source.table)}){_alias(source.alias)}"


def _join_source(to: Generator, join: st.JoinSource) -> str:
    right = to.sql(join.right)
    side = "" if join.kind == "inner" and join.variant else join.kind.upper()
    before = "NATURAL" if join.natural else "ASOF" if join.nearest else ""
    return _words(
        to.sql(join.left), before, side, join.variant.upper(), "JOIN",
        f"({right})" if isinstance(join.right, st.JoinSource) else right,
        f"USING {_names(join.using)}" if join.using else "", _clause("ON", to.sql(join.on)),
        _join_end(join.window, join.jlimit))


def _join_end(window: tuple[Duration, Duration] | None, jlimit: int | None) -> str:
    return _words("" if window is None else f"WINDOW_OFFSET({window[0]}, {window[1]})", _given("JLIMIT", jlimit))


def _tdengine_join(to: Generator, join: TDengineJoin) -> str:
    args = join.args
    return " " + _words(
        args["side"], args["method"], "JOIN", to.sql(args["this"]), _clause("ON", to.sql(args.get("on"))),
        _join_end(args.get("window"), args.get("jlimit")))


def _tdengine_select(to: Generator, select: TDengineSelect) -> str:
    def clause(name: str) -> str:
        return str(to.sql(select, name)).strip()

    args = select.args
    window, fill = clause("window"), clause("fill")
    return _words(
        clause("with_"), "SELECT", clause("distinct"), "TAGS" if args.get("tags_only") else "",
        _sqls(to, select.expressions),
        clause("from_") + "".join(map(to.sql, args.get("joins") or ())), clause("where"),
        _clause("PARTITION BY", _sqls(to, args.get("partition_by") or ())), clause("range"),
        f"EVERY({args['every']})" if args.get("every") else "", *((window, fill) if window else (fill,)),
        clause("group"), clause("having"), clause("qualify"), clause("order"),
        _limit(to, "SLIMIT", "SOFFSET", args.get("slimit")),
        clause("limit"), clause("offset"), _string(">>", args.get("into_file")))


def _interval_window(_: Generator, window: st.IntervalWindow) -> str:
    offset = "" if window.offset is None else f", {'AUTO' if window.offset == 'auto' else window.offset}"
    return f"INTERVAL({window.interval}{offset})" + ("" if window.sliding is None else f" SLIDING({window.sliding})")


def _true_for(window: st.StateWindow | st.EventWindow) -> str:
    return "" if window.true_for is None else f" TRUE_FOR({window.true_for})"


def _event_window(to: Generator, window: st.EventWindow) -> str:
    start, end = to.sql(window.start), to.sql(window.end)
    return f"EVENT_WINDOW START WITH {start} END WITH {end}{_true_for(window)}"


def _count_window(to: Generator, window: st.CountWindow) -> str:
    sliding = () if window.sliding is None else (str(window.sliding),)
    return "COUNT_WINDOW" + _listed((str(window.count), *sliding, *map(to.sql, window.columns)))


def _fill(to: Generator, fill: st.Fill) -> str:
    return "FILL" + _listed((fill.mode.upper(), *map(to.sql, fill.values)))


def _range(to: Generator, span: st.Range) -> str:
    near = () if span.near is None else (str(span.near),)
    return "RANGE" + _listed((*(to.sql(end) for end in (span.first, span.last) if end is not None), *near))


def _limit(to: Generator, words: str, offset: str, limit: st.Limit | st.PartitionsLimit | None) -> str:
    if limit is None:
        return ""
    count, skipped = (str(each) if isinstance(each, int) else to.sql(each) for each in (limit.count, limit.offset))
    count = "ALL" if limit.count is None else f"{count} %" if isinstance(limit, st.Limit) and limit.percent else count
    return f"{words} {count}" + (f" {offset} {skipped}" if limit.offset else "")


def _named_window(to: Generator, named: st.NamedWindow) -> str:
    return f"{identifier(named.name)} AS {to.sql(named.window).removeprefix('NULL OVER ')}"


def _values(to: Generator, query: st.ValuesQuery) -> str:
    return _words(_ctes(to, query), f"VALUES {_sqls(to, query.rows)}", _end(to, query))


def _function_source(to: Generator, source: st.FunctionSource) -> str:
    return f"{to.sql(source.call)}{_alias(source.alias)}{_names(source.columns) if source.columns else ''}"


def _subquery_source(to: Generator, source: st.SubquerySource) -> str:
    names = _names(source.columns) if source.columns else ""
    return _words("LATERAL" if source.lateral else "", f"({to.sql(source.query)}){_alias(source.alias)}{names}")


def _select(to: Generator, select: st.Select) -> str:
    window, fill = to.sql(select.window), to.sql(select.fill)
    return _words(
        _ctes(to, select), "SELECT", "DISTINCT" if select.distinct else "",
        f"DISTINCT ON ({_sqls(to, select.distinct_on)})" if select.distinct_on else "",
        "TAGS" if select.tags_only else "",
        _sqls(to, select.items), _clause("FROM", to.sql(select.source)),
        _clause("WHERE", to.sql(select.where)),
        _clause("PARTITION BY", _sqls(to, select.partition_by)), to.sql(select.range),
        None if select.every is None else f"EVERY({select.every})", *((window, fill) if window else (fill,)),
        _clause("GROUP BY", _sqls(to, select.group_by)), _clause("HAVING", to.sql(select.having)),
        _clause("WINDOW", _sqls(to, select.windows)), _clause("QUALIFY", to.sql(select.qualify)), _end(to, select))


def _ctes(to: Generator, query: st.Query) -> str:
    recursive = any(cte.recursive for cte in query.ctes)
    return _clause("WITH RECURSIVE" if recursive else "WITH", _sqls(to, query.ctes))


def _cte(to: Generator, cte: st.Cte) -> str:
    name = identifier(cte.name) + (_names(cte.columns) if cte.columns else "")
    return f"{name}{f' USING KEY {_names(cte.key_columns)}' if cte.key_columns else ''} AS ({to.sql(cte.query)})"


def _end(to: Generator, query: st.Query) -> str:
    """Prints what comes last in a query."""
    return _words(
        _clause("ORDER BY", _sqls(to, query.order_by)),
        _limit(to, "SLIMIT", "SOFFSET", query.slimit) if isinstance(query, st.Select) else "",
        _limit(to, "LIMIT", "OFFSET", query.limit),
        _string(">>", query.into_file))


def _set_operation(to: Generator, query: st.SetOperation) -> str:
    members = []
    for member in query.queries:
        text = to.sql(member)
        bare = isinstance(member, st.Select) and not (
            member.ctes or member.order_by or member.limit or member.slimit)
        members.append(text if bare else f"({text})")
    words = _words(query.kind.upper(), "ALL" if query.all else "", "BY NAME" if query.by_name else "")
    return _words(_ctes(to, query), f" {words} ".join(members), _end(to, query))


def _explain(to: Generator, explain: st.Explain) -> str:
    part = None if explain.part is None else f"({explain.part.upper()})"
    return _words("EXPLAIN", "ANALYZE" if explain.analyze else "", part, to.sql(explain.statement))


def _analyze_stream(_: Generator, statement: st.AnalyzeStream) -> str:
    return f"EXPLAIN ANALYZE STREAM {identifier(statement.name)} FOR {round(statement.seconds * 1000)}a"


# --- databases and tables ---


def _if_not_exists(statement: Any) -> str:
    return "IF NOT EXISTS" if statement.if_not_exists else ""


def _column_definition(_: Generator, column: st.ColumnDefinition) -> str:
    return _words(identifier(column.name), column.type.sql(), "PRIMARY KEY" if column.primary_key else "",
                  _string("COMMENT", column.comment), *(_string(option, value) for option, value in column.options))


def _create_table(to: Generator, statement: st.CreateTable) -> str:
    columns, key = statement.columns, [column.name for column in statement.columns if column.primary_key]
    if columns and columns[0].primary_key:
        columns = tuple(column.with_changes(primary_key=False) for column in columns)
    else:
        key = []  # the second part of one that begins with the time stands behind its column
    return _words(
        "CREATE STABLE" if statement.must_be_super else "CREATE TABLE", _if_not_exists(statement),
        to.sql(statement.name), f"({', '.join(filter(None, (_sqls(to, columns), _key(key))))})",
        f"TAGS ({_sqls(to, statement.tags)})" if statement.tags else "",
        _string("COMMENT", statement.comment), f"TTL {statement.ttl_days}" if statement.ttl_days else "",
        *(f"{option} {_names(value.split(','))}" if option in ("SMA", "ROLLUP") else f"{option} {value}"
          for option, value in statement.options))


def _create_table_as(to: Generator, statement: st.CreateTableAs) -> str:
    return _words("CREATE TABLE", _if_not_exists(statement), to.sql(statement.name), _key(statement.primary_key), "AS",
                  to.sql(statement.query))


def _key(names: Sequence[str]) -> str:
    return f"PRIMARY KEY {_names(names)}" if names else ""


def _using(to: Generator, target: st.CreateChildTable | st.InsertTarget) -> str:
    return _words("USING", to.sql(target.using), "" if target.tag_names is None else _names(target.tag_names),
                  f"TAGS ({_sqls(to, target.tag_values)})")


def _create_child_tables(to: Generator, statement: st.CreateChildTables) -> str:
    unless = statement.tables[0].if_not_exists
    tables = (_words("IF NOT EXISTS" if n and table.if_not_exists and not unless else "", to.sql(table))
              for n, table in enumerate(statement.tables))
    return _words("CREATE TABLE", "IF NOT EXISTS" if unless else "", " ".join(tables))


def _create_child_table(to: Generator, table: st.CreateChildTable) -> str:
    return _words(to.sql(table.name), _using(to, table), _string("COMMENT", table.comment),
                  f"TTL {table.ttl_days}" if table.ttl_days else "")


def _alter_table(to: Generator, statement: st.AlterTable) -> str:
    return _words("ALTER STABLE" if statement.must_be_super else "ALTER TABLE", to.sql(statement.name),
                  _alter_action(to, statement))


def _alter_action(to: Generator, statement: st.AlterTable) -> str:
    if statement.action == "set_tag":
        return f"SET TAG {_sqls(to, statement.assignments)}"
    if statement.option is not None:
        option, value = statement.option
        return f"{option} {quote_string(str(value)) if option == 'COMMENT' else value}"
    verb, noun = statement.action.upper().split("_")
    return _words(verb, noun, identifier(statement.column or ""),
                  None if statement.new_name is None else f"TO {identifier(statement.new_name)}",
                  None if statement.type is None else statement.type.sql())


def _drop_table(to: Generator, statement: st.DropTable) -> str:
    return _words("DROP STABLE" if statement.must_be_super else "DROP TABLE", _if_exists(statement),
                  _sqls(to, statement.names), _cascade(statement))


def _cascade(statement: Any) -> str:
    return "CASCADE" if statement.cascade else ""


def _if_exists(statement: Any) -> str:
    return "IF EXISTS" if statement.if_exists else ""


# --- views ---


def _create_view(to: Generator, statement: st.CreateView) -> str:
    return _view_of(to, statement, to.sql(statement.query))


def _view_of(to: Generator, statement: st.CreateView, query: str) -> str:
    return _words(
        "CREATE OR REPLACE VIEW" if statement.or_replace else "CREATE VIEW", _if_not_exists(statement),
        to.sql(statement.name), _names(statement.columns) if statement.columns else "",
        "SQL SECURITY INVOKER" if statement.invoker else "", "AS", query)


# --- rows ---


def _insert_target(to: Generator, target: st.InsertTarget) -> str:
    return _words(
        to.sql(target.name), None if target.using is None else _using(to, target),
        None if target.columns is None else _names(target.columns),
        None if target.rows is None else f"VALUES {target.rows}", _string("FILE", target.file),
        to.sql(target.query))


def _insert(to: Generator, statement: st.Insert) -> str:
    return "INSERT INTO " + " ".join(map(to.sql, statement.targets))


def _where(to: Generator, condition: object) -> str:
    return _clause("WHERE", to.sql(condition))


# --- streams ---


def _stream_options(to: Generator, options: st.StreamOptions) -> str:
    words = []
    for name, value in ((name, getattr(options, name)) for name in options.parts):
        if value is None or name in ("dlq", "fill_history_async", "max_delay", "recalculate"):
            continue
        words.append(_stream_option(to, options, name, value))
    return " ".join(words)


def _stream_option(to: Generator, options: st.StreamOptions, name: str, value: Any) -> str:
    option = name.upper()
    if name == "trigger":
        return _words(option, value.upper(), None if options.max_delay is None else str(options.max_delay),
                      _given("RECALCULATE", options.recalculate))
    if name == "watermark_from":
        return f"WATERMARK FROM {value.upper()}"
    if name.startswith("ignore_"):
        option = option.replace("_", " ")
    if name == "timezone":
        return f"{option} {quote_string(value)}"
    if name == "state_limit":
        return f"{option} {quote_string(size_text(value))}"
    if isinstance(value, bool):
        return f"{option} {value:d}{' ASYNC' if name == 'fill_history' and options.fill_history_async else ''}"
    if isinstance(value, float):
        return f"{option} {value:.12g}"
    if value == "dlq":
        return f"{option} DLQ {to.sql(options.dlq)}"
    return f"{option} {value.upper() if isinstance(value, str) else value}"


def _drop_stream(_: Generator, statement: st.DropStream) -> str:
    return _words("DROP", "MATERIALIZED VIEW" if statement.with_table else "STREAM", _if_exists(statement),
                  identifier(statement.name))


def _stream_target(to: Generator, target: st.StreamTarget) -> str:
    if target.external is not None:
        return _words("CONNECTION", to.sql(target.name), to.sql(target.external))
    tags = None
    if target.tag_definitions is not None:
        tags = f"TAGS ({_sqls(to, target.tag_definitions)})"
    elif target.tag_names is not None:
        tags = f"TAGS {_names(target.tag_names)}"
    columns = target.columns
    return _words(
        to.sql(target.name),
        None if columns is None else _listed(identifier(name) + " PRIMARY KEY" * key for name, key in columns), tags,
        None if target.subtable is None else f"SUBTABLE({to.sql(target.subtable)})")


def _external_target(_: Generator, target: st.ExternalTargetOptions) -> str:
    given = [f"{place.upper()} {quote_string(value)}" for place, value in target.places]
    given += [text for text in (_given("FORMAT", target.format and target.format.upper()), _given("QOS", target.qos))
              if text]
    if target.key_columns:
        given.append(f"KEY {_listed(map(identifier, target.key_columns))}")
    return _listed(given) if given else ""


def _notify(_: Generator, notify: st.Notify) -> str:
    return _words(
        "NOTIFY", _listed(map(quote_string, notify.urls)), "ON",
        _listed(quote_string(event.upper()) for event in notify.events), "NOTIFY_HISTORY 1" if notify.history else "",
        "" if notify.on_failure == "pause" else f"ON_FAILURE {notify.on_failure.upper()}")


def _create_stream(to: Generator, statement: st.CreateStream) -> str:
    query = statement.query if statement.calculation is None else statement.calculation.query
    return _stream_of(to, statement, "" if query is None else to.sql(query))


def _stream_of(to: Generator, statement: st.CreateStream, query: str) -> str:
    if statement.materialized and statement.options == st.OF_VIEWS:
        return _words("CREATE MATERIALIZED VIEW", _if_not_exists(statement), to.sql(statement.target), "AS", query)
    if statement.calculation is not None:
        return _triggered_stream(to, statement, statement.calculation, query)
    return _words(
        "CREATE OR REPLACE STREAM" if statement.or_replace else "CREATE STREAM", _if_not_exists(statement),
        identifier(statement.name), to.sql(statement.options), "INTO", to.sql(statement.target), "AS", query,
        to.sql(statement.notify))


def _triggered_stream(to: Generator, statement: st.CreateStream, does: st.Calculation, query: str) -> str:
    """Prints CREATE STREAM with a trigger of its own; `query` is what it computes, or empty."""
    window, source, groups, where = _parts_of_trigger(statement.query)
    target, notify = statement.target, statement.notify
    told = "" if notify is None else _words(
        f"NOTIFY{_listed(map(quote_string, notify.urls))}", f"ON ({' | '.join(e.upper() for e in notify.events)})",
        _where(to, does.where), _options_of_notify(notify))
    into = ""
    if target.name.name:
        tags = None if target.tag_definitions is None or target.tag_values is None else "TAGS " + _listed(
            f"{to.sql(tag)} AS {to.sql(value)}"
            for tag, value in zip(target.tag_definitions, target.tag_values, strict=True))
        subtable = None if target.subtable is None else f"OUTPUT_SUBTABLE({to.sql(target.subtable)})"
        into = _words(
            "INTO", to.sql(target.name), subtable, None if target.columns is None else _listed(
                identifier(name) + " COMPOSITE KEY" * key for name, key in target.columns), tags)
    return _words(
        "CREATE OR REPLACE STREAM" if statement.or_replace else "CREATE STREAM", _if_not_exists(statement),
        ".".join(identifier(part) for part in (does.database, statement.name) if part is not None),
        _trigger(to, window, does), _clause("FROM", to.sql(source)),
        f"PARTITION BY {_sqls(to, groups)}" if groups else "",
        _options_of_trigger(to, statement.options, where, does), told, into, f"AS {query}" if query else "")


def _parts_of_trigger(query: exp.Expression) -> tuple[Any, Any, Any, Any]:
    """Returns the window, the table, PARTITION BY and the condition of a trigger's query, of sqlglot's class too."""
    if isinstance(query, st.Select):
        return query.window, query.source, query.partition_by, query.where
    table, where = query.args.get("from_"), query.args.get("where")
    return (query.args.get("window"), table and table.this, query.args.get("partition_by"), where and where.this)


def _trigger(to: Generator, window: Any, does: st.Calculation) -> str:
    if does.period is not None:
        return f"PERIOD({does.period}{_given(',', does.offset)})"
    if does.slides and isinstance(window, st.IntervalWindow):
        return f"SLIDING({window.interval}{_given(',', window.offset)})"
    return str(to.sql(window))


def _options_of_trigger(to: Generator, options: st.StreamOptions, where: Any, does: st.Calculation) -> str:
    history = "" if does.history_from is None else f"({to.sql(does.history_from)})"
    given = (
        None if options.watermark is None else f"WATERMARK({options.watermark})",
        None if does.expired is None else f"EXPIRED_TIME({does.expired})",
        "IGNORE_DISORDER" if options.ignore_expired else None,
        f"FILL_HISTORY{history}" if options.fill_history else None,
        "CALC_NOTIFY_ONLY" if does.notify_only else None, "FORCE_OUTPUT" if does.force_output else None,
        None if where is None else f"PRE_FILTER({to.sql(where)})",
        None if options.max_delay is None else f"MAX_DELAY({options.max_delay})",
        None if does.events == ("window_close",) else f"EVENT_TYPE({'|'.join(e.upper() for e in does.events)})",
        "IGNORE_NODATA_TRIGGER" if does.ignore_nodata else None, *(flag.upper() for flag in does.flags))
    texts = [text for text in given if text is not None]
    return f"STREAM_OPTIONS({' | '.join(texts)})" if texts else ""


def _options_of_notify(notify: st.Notify) -> str:
    given = [word for word, is_given in (("NOTIFY_HISTORY", notify.history),
                                         ("ON_FAILURE_PAUSE", notify.on_failure == "pause")) if is_given]
    return f"NOTIFY_OPTIONS({' | '.join(given)})" if given else ""


def _alter_stream(to: Generator, statement: st.AlterStream) -> str:
    return _words("ALTER STREAM", _if_exists(statement), identifier(statement.name), "SET",
                  to.sql(statement.options))


def _verify(to: Generator, statement: st.VerifyStream) -> str:
    return _words("VERIFY STREAM", identifier(statement.name), _clause("FROM", to.sql(statement.first)),
                  _clause("TO", to.sql(statement.last)), _given("SAMPLE", statement.sample))


def _dry_run(to: Generator, statement: st.DryRunStream) -> str:
    sample = _string("FILE", statement.file) or (
        f"FROM {to.sql(statement.first)} TO {to.sql(statement.last)}")
    return f"DRY RUN {to.sql(statement.stream)} ON SAMPLE ({sample})"


# --- ingests ---


def _message_field(field: st.MessageField) -> str:
    if field.part is not None:
        return str(field)
    keys = [key if _PLAIN_KEY.fullmatch(key) else quote_identifier(key) for key in field.path]
    if field.array is not None:
        keys[field.array - 1] += "[*]"
    return ".".join(("$", *keys))


def _field_mapping(_: Generator, mapping: st.FieldMapping) -> str:
    return f"{identifier(mapping.column)} = {_message_field(mapping.field)}"


def _ingest_options(_: Generator, options: st.IngestOptions) -> str:
    given = [f"TOPIC {quote_string(topic)}" for topic in options.topics]
    for name in options.parts:
        value = getattr(options, name)
        if name == "topics" or value is None:
            continue
        word = isinstance(value, str) and name not in ("schema", "path", "measurement")
        text = value.upper() if word else value if isinstance(value, int) else quote_string(value)
        given.append(f"{name.upper()} {text}")
    return _listed(given) if given else ""


def _create_ingest(to: Generator, statement: st.CreateIngest) -> str:
    time = "TS ON ARRIVAL" if statement.on_arrival else ""
    if statement.time is not None:
        time = f"TS FROM {_message_field(statement.time)}"
    error = "" if statement.on_error == "fail" else f"ON_ERROR {statement.on_error.upper()}"
    return _words(
        "CREATE INGEST", _if_not_exists(statement), identifier(statement.name), "FROM CONNECTION",
        identifier(statement.connection), to.sql(statement.options), "INTO", to.sql(statement.target),
        f"({_sqls(to, statement.columns)})" if statement.columns else "",
        f"TAGS ({_sqls(to, statement.tags)})" if statement.tags else "",
        None if statement.tbname is None else f"TBNAME ({_message_field(statement.tbname)})", time, error,
        to.sql(statement.dlq))


def _alter_ingest(to: Generator, statement: st.AlterIngest) -> str:
    return _words("ALTER INGEST", _if_exists(statement), identifier(statement.name),
                  f"ON_ERROR {statement.on_error.upper()}", to.sql(statement.dlq))


# --- functions, users, connections ---


def _create_function(_: Generator, statement: st.CreateFunction) -> str:
    def types(kinds: Iterable[DataType]) -> str:
        return _listed(kind.sql() for kind in kinds)

    return _words(
        "CREATE", "OR REPLACE" if statement.replace else "", "AGGREGATE" if statement.aggregate else "", "FUNCTION",
        _if_not_exists(statement), identifier(statement.name),
        None if statement.arguments is None else types(statement.arguments), "RETURNS", statement.result.sql(),
        "LANGUAGE PYTHON AS", quote_string(statement.source), _string("COMMENT", statement.comment))


def _create_user(_: Generator, statement: st.CreateUser) -> str:
    return _words("CREATE USER", _if_not_exists(statement), identifier(statement.name), "PASS",
                  quote_string(statement.password), "ROLE", statement.role.upper())


def _alter_user(_: Generator, statement: st.AlterUser) -> str:
    return _words("ALTER USER", identifier(statement.name), _string("PASS", statement.password),
                  _given("ROLE", statement.role and statement.role.upper()))


# --- inspection ---


def _show(to: Generator, show: st.Show) -> str:
    words = f"SHOW {show.what.upper()}"
    if show.table is not None:
        before = {"checkpoints": "FOR", "savepoints": "FOR", "tags": "FROM", "table tags": "FROM", "indexes": "FROM"}
        words = _words(words, before.get(show.what), to.sql(show.table))
    elif show.database is not None:
        words = _words(words, "" if show.what == "create database" else "FROM", identifier(show.database))
    return _words(words, _string("LIKE", show.like))


_PRINTERS: dict[type[exp.Expression], Callable[[Generator, Any], str]] = {
    **{form.kind: form.sql for form in reversed(FORMS)},  # of several words for the same the first ones are printed
    st.Name: _name,
    st.SelectItem: _aliased, st.PartitionItem: _aliased, st.OrderItem: _order_item,
    st.TableSource: _table_source, st.ExternalSource: _external_source, st.JoinSource: _join_source,
    st.Cte: _cte,
    st.SubquerySource: _subquery_source, st.FunctionSource: _function_source,
    st.NamedWindow: _named_window, st.ValuesQuery: _values,
    st.IntervalWindow: _interval_window,
    st.SessionWindow: lambda to, window: f"SESSION({to.sql(window.column)}, {window.gap})",
    st.StateWindow: lambda to, window: f"STATE_WINDOW({to.sql(window.expression)}){_true_for(window)}",
    st.EventWindow: _event_window, st.CountWindow: _count_window, st.Fill: _fill, st.Range: _range,
    TDengineSelect: _tdengine_select, TDengineJoin: _tdengine_join,
    st.Select: _select, st.SetOperation: _set_operation, st.Explain: _explain, st.AnalyzeStream: _analyze_stream,
    st.SetAnsiQuotes: lambda _, statement: f"SET ansiQuotes {'ON' if statement.is_on else 'OFF'}",
    st.SetQueryTimeout: lambda _, statement: f"SET queryTimeout '{seconds_text(statement.timeout_s)}'",
    st.ColumnDefinition: _column_definition, st.CreateTable: _create_table,
    st.CreateTableAs: _create_table_as,
    st.CreateChildTables: _create_child_tables, st.CreateChildTable: _create_child_table,
    st.AlterTable: _alter_table, st.DropTable: _drop_table,
    st.CreateView: _create_view,
    st.TagAssignment: lambda to, tag: f"{identifier(tag.tag)} = {to.sql(tag.value)}",
    st.Insert: _insert, st.InsertTarget: _insert_target,
    st.StreamOptions: _stream_options, st.StreamTarget: _stream_target, st.ExternalTargetOptions: _external_target,
    st.Notify: _notify, st.CreateStream: _create_stream, st.AlterStream: _alter_stream,
    st.DropStream: _drop_stream, st.VerifyStream: _verify,
    st.ReplayDlq: lambda to, statement: _words(
        "REPLAY DLQ", to.sql(statement.name), _where(to, statement.where)),
    st.DryRunStream: _dry_run,
    st.FieldMapping: _field_mapping, st.IngestOptions: _ingest_options, st.CreateIngest: _create_ingest,
    st.AlterIngest: _alter_ingest,
    st.CreateFunction: _create_function, st.CreateUser: _create_user, st.AlterUser: _alter_user,
    st.Show: _show,
}


class StatementGenerator(ExpressionGenerator):
    """Prints every statement of the dialect."""

    TRANSFORMS = {**ExpressionGenerator.TRANSFORMS, **_PRINTERS}  # noqa: RUF012 - sqlglot's own convention


def print_sql(node: exp.Expression) -> str:
    """Returns a statement or a part of one as text."""
    return str(StatementGenerator().generate(node, copy=False))


def print_stream(statement: st.CreateStream) -> str:
    """Returns CREATE STREAM as text with the query as it was typed: its words are what unnamed columns are called."""
    query = statement.query if statement.calculation is None else statement.calculation.query
    return _stream_of(StatementGenerator(), statement, "" if query is None else query.source_text)


def print_view(statement: st.CreateView) -> str:
    """Returns CREATE VIEW as text with the query as it was typed: its words are what unnamed columns are called."""
    return _view_of(StatementGenerator(), statement, statement.query.source_text)
