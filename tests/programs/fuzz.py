"""Fuzzes the parser and the engine: damaged and made-up statements may only ever give PenstockErrors.

Run by `make fuzz` for MINUTES minutes. Each finding is printed once with the seed of its statement; `--seed` begins
with another one. A statement that computes longer than STUCK_CPU_S, or takes longer than STUCK_S on a machine that has
other things to do, ends the run with the stacks of all threads; the file that is named at the beginning has its text.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kits.basics.golden_runner import read_blocks
from kits.basics.places import GOLDEN
from kits.engines.embedded import Embedded

from penstock.common.errors import InternalError, PenstockError
from penstock.planner.functions.table import FUNCTIONS, Argument
from penstock.sql.dialect.parser import parse
from penstock.sql.tree.statements import (
    AlterDatabase,
    CreateDatabase,
    Insert,
    Select,
    SetOperation,
    SplitVgroup,
    Statement,
    ValuesQuery,
)
from penstock.sql.types import Kind

STUCK_CPU_S, STUCK_S = 60, 600
MEMORY_BYTES = 12 << 30
# Words of DuckDB's that must not reach people.
LEAKS = re.compile(
    r"Error:|Candidate|LINE \d|HUGEINT|TRY_CAST|INT(32|64|128)\b|BLOB|STRUCT|DuckDB|duckdb|_tuid|\"#|::|lambda|"
    r"cast the value|scalar function|not possible: |\bo\d\b|Decimal|UTINYINT|UBIGINT")

SETUP = (
    "CREATE DATABASE IF NOT EXISTS d VGROUPS 2 KEEP 36500", "USE d",
    "CREATE STABLE IF NOT EXISTS st (ts TIMESTAMP, i INT, f FLOAT, d DOUBLE, s VARCHAR(16), o BOOL, "
    "u SMALLINT UNSIGNED, de DECIMAL(6, 2), t2 TIMESTAMP, nc NCHAR(8), vb VARBINARY(8)) TAGS (g INT, name NCHAR(8))",
    "INSERT INTO c1 USING st TAGS (1, 'eins') VALUES (1000, 1, 1.5, 10, 'ab', true, 1, 1.25, 7, 'ö', '\\x01')"
    " (2000, 2, NULL, 4.5, 'AB', false, 2, NULL, NULL, NULL, NULL)"
    " (3000, -3, 3.5, -2, NULL, NULL, NULL, 5.5, 9000, '', '\\xff')"
    " c2 USING st TAGS (2, NULL) VALUES (1500, 7, 8.001, 0, '12', true, 9, 0, 0, 'x', '')",
    "CREATE TABLE IF NOT EXISTS empty USING st TAGS (3, 'leer')",
    "CREATE TABLE IF NOT EXISTS n (ts TIMESTAMP, v INT, k INT, w BIGINT)",
    "INSERT INTO n VALUES (1000, 1, 1, 9223372036854775807) (2000, NULL, 1, -9223372036854775808) (4000, 4, 2, 0)",
    "CREATE STABLE IF NOT EXISTS js (ts TIMESTAMP, v INT) TAGS (j JSON)",
    "INSERT INTO j1 USING js TAGS ('{\"a\": 1, \"b\": \"x\"}') VALUES (1000, 1)",
    "CREATE TABLE IF NOT EXISTS keyed (ts TIMESTAMP, k INT PRIMARY KEY, v INT)",
    "INSERT INTO keyed VALUES (1000, 1, 1) (1000, 2, 2)",
)
COLUMNS = ("ts", "i", "f", "d", "s", "o", "u", "de", "t2", "nc", "vb", "g", "name", "tbname", "v", "k", "w", "j",
           "_wstart", "_wend", "_wduration", "_rowts", "_qstart", "_irowts", "_isfilled", "x.ts", "x.i", "*", "x.*")
TABLES = ("st", "c1", "c2", "empty", "n", "js", "j1", "keyed", "st x", "n x", "information_schema.ins_tables",
          "(SELECT ts, i, s FROM c1) x", "(SELECT _wstart, count(*) c FROM st INTERVAL(1s)) x",
          "st x JOIN n ON x.ts = n.ts", "c1 x LEFT ASOF JOIN n", "c1 x LEFT WINDOW JOIN n WINDOW_OFFSET(-1s, 1s)",
          "c1 x FULL JOIN n ON x.ts = n.ts")
KINDS = {
    "ts": Kind.TIMESTAMP, "i": Kind.INT, "f": Kind.FLOAT, "d": Kind.DOUBLE, "s": Kind.VARCHAR, "o": Kind.BOOL,
    "u": Kind.USMALLINT, "de": Kind.DECIMAL, "t2": Kind.TIMESTAMP, "nc": Kind.NCHAR, "vb": Kind.VARBINARY,
    "g": Kind.INT, "name": Kind.NCHAR, "tbname": Kind.VARCHAR, "3": Kind.BIGINT, "-1": Kind.BIGINT, "0": Kind.BIGINT,
    "9223372036854775807": Kind.BIGINT, "2.5": Kind.DOUBLE, "1e300": Kind.DOUBLE, "'a'": Kind.VARCHAR,
    "''": Kind.VARCHAR, "'12'": Kind.VARCHAR, "'2024-01-01'": Kind.VARCHAR, "'YYYY'": Kind.VARCHAR, "NULL": Kind.NULL,
    "true": Kind.BOOL, "now": Kind.TIMESTAMP, "TIMESTAMP '2024-01-01'": Kind.TIMESTAMP,
}
LITERALS = ("0", "1", "-1", "2.5", "1e300", "9223372036854775807", "-9223372036854775808", "18446744073709551615", "''",
            "'a'", "'1'", "'abc%'", "'2024-01-01'", "'1s'", "NULL", "true", "false", "now", "today", "1s", "1d", "1n",
            "1a", "1b", "'lt'", "'%'", "'['", "'YYYY-MM-DD'", "'t-digest'", "100", "3000", "TIMESTAMP '2024-01-01'",
            "'{\"start\": 0, \"width\": 1, \"count\": 2, \"infinity\": true}'", "'linear_bin'", "'[1, 2]'", "0x1F")
OPERATORS = ("+", "-", "*", "/", "%", "&", "|", "=", "<>", "<", ">=", "AND", "OR", "LIKE", "MATCH", "NMATCH", "->",
             "CONTAINS", "IN", "IS", "BETWEEN")
TYPES = ("INT", "BIGINT", "TINYINT UNSIGNED", "FLOAT", "DOUBLE", "VARCHAR(4)", "NCHAR(3)", "TIMESTAMP", "BOOL",
         "VARBINARY(4)", "DECIMAL(5, 2)", "BIGINT UNSIGNED", "SMALLINT", "GEOMETRY(9)", "JSON")
WINDOWS = ("INTERVAL(1s)", "INTERVAL(1d)", "INTERVAL(1n)", "INTERVAL(2s, 1s) SLIDING(1s)", "INTERVAL(1y, 1n)",
           "INTERVAL(1s, AUTO)", "SESSION(ts, 1s)", "STATE_WINDOW({e})", "STATE_WINDOW(o) TRUE_FOR(1s)",
           "EVENT_WINDOW START WITH {e} END WITH {e}", "COUNT_WINDOW(2)", "COUNT_WINDOW(3, 1)", "COUNT_WINDOW(2, {e})")
FILLS = ("FILL(PREV)", "FILL(NEXT)", "FILL(LINEAR)", "FILL(NULL)", "FILL(NULL_F)", "FILL(VALUE, 1)",
         "FILL(VALUE_F, 1, 'a')", "FILL(NONE)", "FILL(NEAR)")
NOISE = "'\"`()[],;.*-+/\\%&|=<>!?: \n\0é\u2028０1s"


def leaf(r: random.Random, wanted: frozenset[Kind] = frozenset(Kind)) -> str:
    """Returns a column of the table `st` or a constant, mostly of one of the wanted kinds."""
    if r.random() < 0.1:
        return r.choice((*COLUMNS, *LITERALS))
    fitting = [name for name, kind in KINDS.items() if kind in wanted]
    return r.choice(fitting or COLUMNS)


def argument(r: random.Random, rule: Argument, depth: int) -> str:
    """Returns an argument that mostly follows its rule."""
    if r.random() < 0.05:
        return leaf(r)
    if rule.duration:
        return r.choice(("1s", "1a", "1h", "1d", "1w", "1u", "2s"))
    if rule.choices:
        choice = r.choice(rule.choices)
        return f"'{choice}'" if isinstance(choice, str) else str(choice)
    if rule.literal and rule.low is not None:
        return str(r.randint(rule.low, min(rule.high or 9, rule.low + 9)))
    if rule.literal:
        return r.choice(LITERALS)
    return expression(r, depth, rule.accepts) if depth > 0 and r.random() < 0.5 else leaf(r, rule.accepts)


def expression(r: random.Random, depth: int, wanted: frozenset[Kind] = frozenset(Kind)) -> str:
    """Returns an expression that is right in form, and now and then in meaning."""
    kind = r.random()
    if depth <= 0 or kind < 0.25:
        return leaf(r, wanted)
    if kind < 0.7:
        categories = ("scalar",) if r.random() < 0.6 else ("aggregate", "selection", "timeseries", "pseudo")
        spec = r.choice([spec for spec in FUNCTIONS.values() if spec.category in categories])
        if spec.category == "pseudo":
            return spec.name
        count = r.randint(spec.minimum, min(spec.maximum, spec.minimum + 3)) if r.random() < 0.98 else r.randint(0, 4)
        arguments = (argument(r, spec.argument(index), depth - 1) if spec.arguments else leaf(r)
                     for index in range(count))
        return f"{spec.name}({', '.join(arguments)})"
    left, right = expression(r, depth - 1), expression(r, depth - 1)
    if kind < 0.85:
        operator = r.choice(OPERATORS)
        if operator == "IN":
            return f"({left} IN ({right}, {expression(r, 0)}))"
        if operator == "IS":
            return f"({left} IS {r.choice(('', 'NOT '))}NULL)"
        if operator == "BETWEEN":
            return f"({left} BETWEEN {right} AND {expression(r, 0)})"
        return f"({left} {operator} {right})"
    if kind < 0.92:
        return f"CASE WHEN {left} THEN {right} ELSE {expression(r, depth - 1)} END"
    if kind < 0.98:
        return f"CAST({left} AS {r.choice(TYPES)})"
    return f"(NOT {left})"


def query(r: random.Random, depth: int = 2) -> str:
    """Returns a SELECT with clauses of all kinds."""
    def some(chance: float, text: Callable[[], str]) -> str:
        return f" {text()}" if r.random() < chance else ""

    def e(levels: int = depth) -> str:
        return expression(r, levels)

    items = ", ".join(e() + some(0.2, lambda: r.choice(("AS q", "q", "AS `w`"))) for _ in range(r.randint(1, 3)))
    text = "SELECT" + some(0.1, lambda: "DISTINCT") + some(0.03, lambda: "TAGS") + f" {items}"
    text += some(0.97, lambda: f"FROM {'st' if r.random() < 0.5 else r.choice(TABLES)}")
    text += some(0.3, lambda: f"WHERE {e()}") or some(0.3, lambda: "WHERE ts >= 0 AND ts < 5000")
    text += some(0.25, lambda: f"PARTITION BY {r.choice(('tbname', 'g', 'q', '1', e(1)))}")
    if "interp(" in text and r.random() < 0.8:
        text += f" RANGE({r.choice(('0, 5000', '1000', e(0)))}) EVERY({r.choice(('1s', '700a'))}) {r.choice(FILLS)}"
    else:
        text += some(0.3, lambda: r.choice(WINDOWS).replace("{e}", e(1)) + some(0.4, lambda: r.choice(FILLS)))
        text += some(0.15, lambda: f"GROUP BY {r.choice(('tbname', 'g', 'q', '1', e(1)))}")
    text += some(0.15, lambda: f"HAVING {e()}")
    text += some(0.25, lambda: f"ORDER BY {r.choice(('1', 'ts', 'q', e(1)))}" + some(0.3, lambda: "DESC"))
    text += some(0.1, lambda: "SLIMIT 1") + some(0.15, lambda: "LIMIT 2 OFFSET 1")
    if r.random() < 0.06:
        text = f"{text} UNION {r.choice(('', 'ALL '))}{query(r, 1)}"
    return text


def stream(r: random.Random) -> str:
    """Returns a CREATE STREAM over what may be too much for a stream."""
    options = r.choice(("", "TRIGGER AT_ONCE ", "TRIGGER WINDOW_CLOSE WATERMARK 1s ", "TRIGGER FORCE_WINDOW_CLOSE "))
    if r.random() < 0.5:
        asked = query(r, 1)
    else:
        items = ", ".join(f"{expression(r, 2)} q{n}" for n in range(r.randint(1, 3)))
        window = r.choice(WINDOWS).replace("{e}", expression(r, 1)) if r.random() < 0.7 else ""
        asked = f"SELECT {'_wstart' if window else 'ts'}, {items} FROM st PARTITION BY tbname {window}"
    return f"CREATE STREAM fuzzed{r.randrange(50)} {options}INTO results{r.randrange(1000)} AS {asked}"


def huge(r: random.Random) -> str:
    """Returns a query or a stream with something that is deep or wide."""
    count, inner = r.choice((10, 45, 60, 300, 600)), expression(r, 1)
    wide = min(count, 300)
    text = r.choice((
        f" {r.choice('+-*/%&|')} ".join([inner] * count),
        f" {r.choice(('AND', 'OR'))} ".join([inner] * count),
        r.choice(("(", "abs(", "- ", "NOT ", "(1 + ")) * count + inner + ")" * count * r.randint(0, 1),
        f"CASE {' '.join(f'WHEN {inner} THEN {n}' for n in range(wide))} END",
        f"i IN ({', '.join(leaf(r) for _ in range(wide))})",
    ))
    if r.random() < 0.2:
        return r.choice((" UNION ", " UNION ALL ")).join([f"SELECT {inner} FROM st"] * wide)
    asked = f"SELECT ts, {text} q FROM st PARTITION BY tbname"
    if r.random() < 0.5:
        return asked
    return f"CREATE STREAM fuzzed{r.randrange(50)} INTO results{r.randrange(1000)} AS {asked}"


def damaged(r: random.Random, text: str, corpus: list[str]) -> str:
    """Returns the text with some of its characters or words changed."""
    for _ in range(r.randint(1, 4)):
        words = re.findall(r"\w+|'[^']*'|\s+|.", text)
        at = r.randrange(len(words) + 1)
        match r.randrange(7):
            case 0:
                del words[at:at + r.randint(1, 3)]
            case 1:
                words.insert(at, r.choice(NOISE))
            case 2:
                words.insert(at, chr(r.randrange(0x110000)))
            case 3:
                other = re.findall(r"\w+|'[^']*'|\s+|.", r.choice(corpus))
                start = r.randrange(len(other) + 1)
                words[at:at + r.randint(0, 4)] = other[start:start + r.randint(1, 8)]
            case 4:
                words[at:at + 1] = [r.choice((*LITERALS, *COLUMNS, "9" * 30, "1e500", "((((", "select ", "from "))]
            case 5:
                words[at:at + 1] = [f" {expression(r, 1)} "]
            case _:
                words = words[:at]
        text = "".join(words)
    return text


def statements(r: random.Random, corpus: list[str]) -> str:
    """Returns the next statement to try."""
    kind = r.random()
    if kind < 0.4:
        return query(r)
    if kind < 0.48:
        return stream(r)
    if kind < 0.5:
        return huge(r)
    if kind < 0.97:
        return damaged(r, r.choice(corpus), corpus)
    return "".join(chr(r.choice((r.randrange(128), r.randrange(0x110000)))) for _ in range(r.randint(0, 40)))


def harmless(statement: Statement) -> bool:
    """Whether a statement may be executed: it reads and writes no files and makes no thousand vnodes."""
    match statement:
        case Select() | SetOperation() | ValuesQuery():
            return statement.into_file is None
        case Insert():
            return all(target.file is None for target in statement.targets)
        case CreateDatabase() | AlterDatabase():
            return dict(statement.options).get("VGROUPS", 2) in (1, 2, 3) if statement.options else False
        case SplitVgroup():
            return False
    return True


def tried(db: Embedded, text: str) -> Exception | None:
    """Parses and executes a text; returns what should not have been raised."""
    try:
        if all(map(harmless, parse(text))):
            db.execute(text)
    except InternalError as error:
        return error
    except PenstockError as error:
        return error if LEAKS.search(error.message.replace(text, "")) else None
    except Exception as error:  # noqa: BLE001  any other exception is a finding
        return error
    return None


def where(error: Exception) -> str:
    """Returns what makes two findings the same: the kind, the place, the message without names and numbers."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__} {place} {re.sub(r'[0-9]+|`[^`]*`|.[^ ]*_[^ ]*', '', str(error))[:60]}"


def prepared(db: Embedded) -> None:
    """Brings the tables back that statements have dropped or changed."""
    kept = ("d", "information_schema", "performance_schema")
    for (name,) in db.run("SHOW STREAMS") and db.run("SELECT stream_name FROM information_schema.ins_streams"):
        db.execute(f"DROP STREAM `{name}`")
    for (name,) in db.run("SHOW DATABASES"):
        if name not in kept:
            db.execute(f"DROP DATABASE `{name}`")
    try:
        db.all(*SETUP)
    except PenstockError:
        db.all("DROP DATABASE IF EXISTS d", *SETUP)


def corpus() -> list[str]:
    """Returns the statements of all golden scripts."""
    return [block.statement for path in sorted(GOLDEN.glob("*/*.txt")) for block in read_blocks(path)
            if block.statement and "{directory}" not in block.statement]


@contextmanager
def ended_if_stuck() -> Iterator[None]:
    """Ends the process, with the stacks of all threads, if what is done in it takes too long."""
    faulthandler.register(signal.SIGPROF, chain=True)
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    signal.setitimer(signal.ITIMER_PROF, STUCK_CPU_S)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    faulthandler.cancel_dump_traceback_later()


def run(seconds: float, seed: int) -> Iterator[tuple[int, str, Exception]]:
    """Yields findings until the time is over: seed, statement, what was raised."""
    texts = corpus()
    seen: set[str] = set()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        db = Embedded(Path(folder) / "data")
        current = Path(folder) / "statement"
        sys.stderr.write(f"the statement at work is in {current}\n")
        number = seed
        while time.monotonic() < end:
            if (number - seed) % 300 == 0:
                prepared(db)
            text = statements(random.Random(number), texts)
            current.write_text(f"{number}: {text}")
            with ended_if_stuck():
                error = tried(db, text)
            if error is not None and where(error) not in seen:
                seen.add(where(error))
                yield number, text, error
            number += 1
        db.close()
    sys.stdout.write(f"{number - seed} statements\n")


def main() -> int:
    """Returns 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to run")
    parser.add_argument("--seed", type=int, default=0, help="the first statement's seed")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    found = 0
    for seed, text, error in run(options.minutes * 60, options.seed):
        found += 1
        shown = traceback.format_exception(error)[-4:] if not isinstance(error, PenstockError) else [str(error)]
        sys.stdout.write(f"--- {seed}: {text}\n{type(error).__name__}: {''.join(shown)}\n")
        sys.stdout.flush()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
