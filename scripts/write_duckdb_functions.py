"""Writes planner/functions/duckdb_list.py: DuckDB's functions that queries may call, of the catalog of DuckDB itself.

Those that the dialect has by the same name are in it, too: they are called with values of types that only DuckDB has.

What is new in a version of DuckDB comes into the list when this is run, and is read by somebody in the difference.
"""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import duckdb

LIST = Path(__file__).resolve().parent.parent / "planner" / "functions" / "duckdb_list.py"
EXCLUDED = {
    "operators, and what DuckDB keeps for itself":
        r".*[^a-z0-9_].*|_.*|unpivot_list|constant_or_null|sum_no_overflow|count_star|stats|vector_type|"
        r"json_copy_.*|invoke|switch|alias",
    "they tell of the process, the session, its settings or its variables":
        r"current_.*|session_user|user|version|txid_current|transaction_timestamp|getvariable|inet_.*|get_current_.*|"
        r"now|today|ago|timezone|timezone_.*",
    "they look into the catalog of DuckDB, which knows names of ours in another form":
        r"pg_.*|has_.*_privilege|format_type|format_pg_type|map_to_pg_oid|.*_description|get_block_size|in_search_path|"
        r"hive_partition_component",
    "they read SQL": r"json_(de)?serialize_.*",
    "they change something, wait or fail on purpose":
        r"nextval|currval|setval|setseed|write_log|parse_duckdb_log_message|sleep_ms|error|assert_true",
    "one call of them makes as much as it is told, whatever bound the query has":
        r"damerau_levenshtein|printf|format|bitstring|list_resize|array_resize|range|generate_series|"
        r"repeat|lpad|rpad",
    "they are about types, of which the dialect has other ones":
        r"make_type|cast_to_type|can_cast_implicitly|get_type|replace_type|enum_.*|variant_.*|st_.*|vertex_extract",
    "they order texts by a language, or make keys of the storage":
        r"(icu_)?collate_.*|icu_sort_key|create_sort_key|index_key",
    "they are halves of aggregates": r"finalize|combine|combine_aggr|to_aggregate_state",
    "they give several rows": r"unnest|regexp_split_to_table|generate_subscripts",
}
"""Patterns of names that are left out, by what is wrong with them."""

_GROUPS = (
    ("JSON", r"json.*|.*_json|from_json.*|row_to_json|array_to_json"),
    ("structs, maps and unions", r"(struct|map|union)_.*|map|row|element_at|cardinality"),
    ("lists", r"(list|array)_.*|flatten|grade_up"),
    ("times", r".*(date|time|day|week|month|year|epoch).*|age|century|decade|era|hour|minute|second|quarter|julian|"
              r"mill(isecond|ennium)|microsecond|nanosecond|to_(centuries|hours|millennia|quarters|.*seconds)|"
              r"to_decades|to_minutes|datesub|datepart|strftime|strptime|try_strptime"),
)
"""Groups of scalar functions by their names; what isn't among them goes by what it takes."""
_SPELLED = {"struct_pack"}
"""What the grammar makes of such a call is none."""
_TIMES = {"DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"}
_CALENDAR, _INSTANTS = r"(try_)?strptime|make_timestamp", r"epoch.*"
_CALLS = re.compile(r'"?([a-z_0-9]+)"?\(')
_WORDS = {"case", "cast", "when", "then", "and", "or", "if", "not", "else", "coalesce"}
_WIDTH = 110
_CATALOG = """
SELECT lower(function_name), function_type, parameters, parameter_types, varargs, macro_definition, stability
FROM duckdb_functions() WHERE function_type IN ('scalar', 'aggregate', 'macro') ORDER BY ALL"""


@dataclass(frozen=True)
class Overload:
    """A row of DuckDB's catalog of functions."""

    name: str
    kind: str
    parameters: list[str]
    types: list[str | None]
    varargs: str | None
    definition: str | None
    stability: str | None

    @property
    def form(self) -> str:
        """The call with the types that it takes, or with the names of a macro's parameters."""
        taken = [name if type_ is None else type_ for name, type_ in zip(self.parameters, self.types, strict=True)]
        return f"{self.name}({', '.join([*taken, *([f'{self.varargs}...'] if self.varargs else [])])})"


def catalog() -> dict[str, list[Overload]]:
    """Returns the overloads of every function, by its name."""
    found: dict[str, list[Overload]] = {}
    for row in duckdb.connect().execute(_CATALOG).fetchall():
        overload = Overload(*row)
        found.setdefault(overload.name, []).append(overload)
    return found


def excluded(name: str) -> str | None:
    """Returns why a function is left out, None if no pattern names it."""
    return next((reason for reason, pattern in EXCLUDED.items() if re.fullmatch(pattern, name)), None)


def allowed(functions: dict[str, list[Overload]]) -> set[str]:
    """Returns the functions that queries may call, those of the same name in the dialect included.

    A macro is allowed if all that it is made of is.
    """
    names = {name for name, overloads in functions.items()
             if excluded(name) is None and all(overload.kind != "macro" for overload in overloads)}
    waiting = {name for name in functions if excluded(name) is None} - names
    while more := {name for name in waiting if all(_made_of(each) <= names for each in functions[name])}:
        names |= more
        waiting -= more
    return names


def _made_of(overload: Overload) -> set[str]:
    """What a macro calls; SELECT, which may read anything, is no function."""
    definition = str(overload.definition).lower()
    return {*_CALLS.findall(definition), *re.findall(r"\bselect\b", definition)} - _WORDS


def _aggregates(functions: dict[str, list[Overload]], names: set[str]) -> set[str]:
    """Returns those of the names that are computed of several rows: macros may be made of such ones."""
    found = {name for name in names if functions[name][0].kind == "aggregate"}
    while more := {name for name in names - found if functions[name][0].kind == "macro"
                   and any(_made_of(overload) & found for overload in functions[name])}:
        found |= more
    return found


def _group(name: str, overloads: list[Overload]) -> str:
    for group, pattern in _GROUPS:
        if re.fullmatch(pattern, name):
            return group
    taken = {str(type_) for overload in overloads for type_ in overload.types}
    return "texts" if "VARCHAR" in taken or "BLOB" in taken else "numbers and others"


def _is_of_calendar(name: str, overloads: list[Overload]) -> bool:
    types = {str(type_) for overload in overloads for type_ in overload.types}
    return not re.fullmatch(_INSTANTS, name) and (bool(types & _TIMES) or re.fullmatch(_CALENDAR, name) is not None)


def module() -> str:
    """Returns the text of the module."""
    functions = catalog()
    names = allowed(functions)
    aggregates = _aggregates(functions, names)
    groups: dict[str, list[str]] = {}
    calendar = []
    for name in sorted(names - _SPELLED):
        group = "aggregates" if name in aggregates else _group(name, functions[name])
        groups.setdefault(group, []).append(name)
        if name not in aggregates and _is_of_calendar(name, functions[name]):
            calendar.append(name)
    parts = ",\n".join(f'    "{group}": {_words_of(groups[group])}' for group in sorted(groups))
    return (f'"""DuckDB\'s functions that queries may call. Written by scripts/write_duckdb_functions.py."""\n\n'
            f"GROUPS = {{\n{parts},\n}}\n\n"
            f"# Those that read times off the calendar of the session's time zone.\n"
            f"CALENDAR = {_words_of(calendar)}\n")


def _words_of(names: list[str]) -> str:
    lines = "\n".join(textwrap.wrap(" ".join(names), _WIDTH, break_on_hyphens=False))
    return f'"""\n{lines}\n"""'


if __name__ == "__main__":
    LIST.write_text(module(), "utf-8")
    sys.stdout.write(f"written: {LIST}\n")
