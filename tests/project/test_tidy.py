"""What the architecture promises of every source file: who imports whom, who may wait, what is written down."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from kits.basics.places import ROOT

#: Each part and the parts below it that it may import.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "common": frozenset(),
    "sql": frozenset({"common"}),
    "planner": frozenset({"sql", "common"}),
    "wal": frozenset({"common"}),
    "vnode": frozenset({"wal", "common"}),
    "tasks": frozenset({"planner", "vnode", "wal", "sql", "common"}),
    "mnode": frozenset({"tasks", "planner", "vnode", "wal", "sql", "common"}),
    "shell": frozenset({"mnode", "tasks", "planner", "vnode", "wal", "sql", "common"}),
}

#: The rooms of parts, lowest first: a room knows itself and those before it. What stands at the top of a part is below
#: all of its rooms in sql, where it is what all know.
ROOMS: dict[str, tuple[str, ...]] = {
    "sql": ("", "tree", "dialect", "rows"),
    "vnode": ("store", "read", "write", "", "repair"),
    "tasks": ("compiled", "protocol", "state", "dnode_access", "compute", "flow", "exchange", "external", "operators",
              "window", "dropped", "recalculation", "source", "join", "sink", "refresh", "ingest", "worker"),
    "mnode": ("cluster", "catalog", "access", "dnode", "ddl", "write", "query", "checkpoints", "groups", "coordinator",
              "controller", "explain", "streams", "show", "http", "", "admin"),
    "shell": ("flight_sql", "api", "terminal", "server", "postgres", "taos_socket", "commands", ""),
    "planner": ("duckdb_sql", "task_plans", "logical", "scalar", "functions", "bind", "lower", "query", "streams"),
}

#: Libraries that only these files may import.
EDGES: dict[str, tuple[str, ...]] = {
    # The source is what users' own Spark programs load; nothing of the engine imports it.
    "pyspark": ("tasks/worker/spark_runtime.py", "tasks/worker/daemon.py", "shell/api/spark_source.py",
                "examples/in_spark.py", "bench/spark_peer.py", "bench/nexmark_peers.py"),
    "lmdb": ("mnode/catalog/catalog_store.py", "tasks/state/*.py", "tasks/worker/daemon.py"),
    # Statements carry expressions unbound: who binds one outside of the planner looks into it.
    "sqlglot": ("sql/*/*.py", "planner/*/*.py", "planner/*/*/*.py", "mnode/write/deletes.py",
                "mnode/ddl/tag_values.py", "shell/postgres/catalog_queries.py", "scripts/function_reference.py"),
    "numba": ("tasks/compiled/compiled_loops.py",),
    "kazoo": ("mnode/cluster/zookeeper_registry.py",),
    "prometheus_client": ("mnode/http/metrics.py",),
    "fsspec": ("mnode/checkpoints/backup_store.py", "tasks/external/connectors/files.py"),
    "confluent_kafka": ("tasks/external/connectors/kafka*.py", "bench/external.py"),
    "paho": ("tasks/external/connectors/mqtt*.py", "bench/external.py"),
    "fastavro": ("tasks/external/connectors/avro.py",),
    "psycopg": ("tasks/external/connectors/postgres.py", "bench/connections.py", "bench/client_process.py"),
    "httpx": ("tasks/external/connectors/webhook.py",),
    "websockets": ("shell/taos_socket/socket_route.py", "tasks/external/connectors/websocket.py",
                   "bench/connections.py"),
    "grpc": ("shell/flight_sql/*.py", "shell/server/*.py"),
    "google": ("shell/flight_sql/protobuf_messages.py",),
    "sqlalchemy": ("shell/api/sqlalchemy_*.py",),
    "prompt_toolkit": ("shell/*/*.py",),
    "pygments": ("shell/*/*.py",),
    "rich": ("shell/*/*.py", "examples/**/*.py", "bench/*.py"),
}

MAY_PRINT = ("shell", "examples", "bench", "tests")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Returns all of a file's nodes, in the order of `ast.walk`, which takes longer than all that is asked of them."""
    found: list[ast.AST] = [parsed(path)]
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found.extend(item for item in value if isinstance(item, ast.AST))
            elif isinstance(value, ast.AST):
                found.append(value)
    return tuple(found)


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


PARTS = sources(*MAY_IMPORT)
PROGRAMS = sources(*MAY_IMPORT, "src", "examples", "bench", "scripts", "deploy")
EVERYTHING = sorted({*PROGRAMS, *sources("tests")})


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def for_each(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[str], None]]:
    """Makes of what is expected of a file one test per part, which names all files that fall short.

    To be told of thousands of tests takes pytest longer than to run these.
    """
    by_part: dict[str, list[Path]] = {}
    for path in paths:
        by_part.setdefault(path.relative_to(ROOT).parts[0], []).append(path)

    def over_part(test: Callable[[Path], None]) -> Callable[[str], None]:
        def over_files(part: str) -> None:
            wrong = []
            for path in by_part[part]:
                try:
                    test(path)
                except AssertionError as error:
                    wrong.append(str(error))
            assert not wrong, "\n".join(wrong)

        return pytest.mark.parametrize("part", list(by_part))(over_files)

    return over_part


@cache
def imported_modules(path: Path) -> tuple[tuple[str, int], ...]:
    """Returns what a file imports, also inside of functions, with line numbers; `from x import y` as x.y."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: import absolutely"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


@for_each(PARTS)
def test_parts_import_only_downwards(path: Path) -> None:
    """A part knows itself and what lies below it."""
    part = path.relative_to(ROOT).parts[0]
    allowed = MAY_IMPORT[part] | {part}
    for module, line in imported_modules(path):
        first, _, rest = module.partition(".")
        other = rest.split(".")[0]
        assert first not in MAY_IMPORT, f"{name_of(path)}:{line}: write penstock.{module}"
        if first == "penstock" and other in MAY_IMPORT:
            assert other in allowed, f"{name_of(path)}:{line}: {part} must not import {other}"


@for_each(sources(*ROOMS))
def test_rooms_import_only_downwards(path: Path) -> None:
    """A room of a part knows itself and those below it, imports inside of functions included."""
    part = path.relative_to(ROOT).parts[0]
    rooms = ROOMS[part]
    own = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts[1:]), rooms)
    for module, line in imported_modules(path):
        inside = module.removeprefix(f"penstock.{part}.")
        if inside != module:
            other = room_of(inside, rooms)
            assert rooms.index(other) <= rooms.index(own), f"{name_of(path)}:{line}: {own} must not import {other}"


def room_of(module: str, rooms: Sequence[str]) -> str:
    first, _, rest = module.partition(".")
    return first if rest and first in rooms else ""


@pytest.mark.parametrize("library", EDGES)
def test_libraries_stay_at_their_edge(library: str) -> None:
    """Spark, LMDB, sqlglot and the terminal are known to few files."""
    for path in PROGRAMS:
        if any(path.match(pattern) for pattern in EDGES[library]):
            continue
        for module, line in imported_modules(path):
            assert module.split(".")[0] != library, f"{name_of(path)}:{line}: only {EDGES[library]} import {library}"


@for_each(EVERYTHING)
def test_files_are_tidy(path: Path) -> None:
    """Every module says what it is for; nothing is left undone, swallowed, or waited for by the clock."""
    text = path.read_text("utf-8")
    tree = parsed(path)
    name = name_of(path)
    assert ast.get_docstring(tree) or not tree.body, f"{name}: no module docstring"
    if path.name != "test_tidy.py":
        leftover = re.search(r"\b(TODO|FIXME|XXX)\b", text)
        assert leftover is None, f"{name}: {leftover and leftover[0]}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name != "common/clock.py":
            assert called_name(node) != "sleep", f"{name}:{node.lineno}: wait on a condition instead"
        if isinstance(node, ast.Call) and path.relative_to(ROOT).parts[0] not in MAY_PRINT:
            assert called_name(node) != "print", f"{name}:{node.lineno}: only the shell prints"
        if isinstance(node, ast.ExceptHandler):
            swallows = all(isinstance(each, ast.Pass) for each in node.body)
            broad = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
            assert not (swallows and broad), f"{name}:{node.lineno}: swallows every exception"


#: How text is looked into; what `render` gives and what is called sql is for DuckDB alone.
LOOKS_INTO_TEXT = frozenset({
    "startswith", "endswith", "replace", "removeprefix", "removesuffix", "find", "rfind", "index", "split", "rsplit",
    "partition", "rpartition", "strip", "count"})


def is_printed_sql(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return called_name(node) == "render"
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name == "sql" or name.endswith("_sql")


@for_each([path for path in PARTS if path.relative_to(ROOT).parts[0] in (
    "planner", "tasks", "mnode")])
def test_nobody_reads_sql_that_the_planner_has_printed(path: Path) -> None:
    """What an expression is, its tree says: nothing compares its text with another, or looks into it."""
    for node in nodes(path):
        if isinstance(node, ast.Compare) and any(isinstance(one, ast.Eq | ast.NotEq | ast.In | ast.NotIn)
                                                 for one in node.ops):
            assert not any(map(is_printed_sql, (node.left, *node.comparators))), f"{name_of(path)}:{node.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS_INTO_TEXT:
            assert not is_printed_sql(node.func.value), f"{name_of(path)}:{node.lineno}"


#: Rooms that tell people how things are, or show what they were told, and what such texts are called there.
TELLING = {("mnode", room) for room in ("coordinator", "explain", "http", "show", "streams")} | {("shell", "terminal")}
TEXTS_FOR_PEOPLE = frozenset({"text", "reason", "verdict", "message", "remark", "delivery"})


def is_told(node: ast.expr) -> bool:
    """Whether it is a text for people: one just made, or by its name, be that a field's or a column's."""
    match node:
        case ast.JoinedStr():
            return True
        case ast.BoolOp(values=values):
            return any(map(is_told, values))
        case ast.Call(func=ast.Name(id=name)):
            return name in ("str", "repr", *TEXTS_FOR_PEOPLE) or name.endswith(("_text", "_reason"))
        case ast.Subscript(slice=ast.Constant(value=str() as name)) | ast.Attribute(attr=name):
            return name in TEXTS_FOR_PEOPLE
        case ast.Name(id=name):  # any parameter may be called text
            return name in TEXTS_FOR_PEOPLE - {"text"}
    return False


#: What isn't told by us: names of files, what clients and users have written, ids as older versions wrote them.
NOT_TOLD = {("mnode/coordinator/backup_store.py", "str(found)"), ("mnode/http/partial_writes.py", "self.text"),
            ("mnode/coordinator/checkpoint_backups.py", "str(TaskId.parse(task))"),
            ("shell/terminal/error_text.py", "position.text"), ("shell/terminal/shell_session.py", "piece.text")}


@for_each([path for path in PARTS if path.relative_to(ROOT).parts[:2] in TELLING])
def test_nobody_reads_what_people_are_told(path: Path) -> None:
    """Who needs a part of it is given that part: texts, and columns of them in system tables, are never taken apart."""
    def fine(read: ast.expr) -> bool:
        return not is_told(read) or (name_of(path), ast.unparse(read)) in NOT_TOLD

    for node in nodes(path):
        if isinstance(node, ast.Compare) and any(isinstance(one, ast.Eq | ast.NotEq | ast.In | ast.NotIn)
                                                 for one in node.ops):
            assert all(map(fine, (node.left, *node.comparators))), f"{name_of(path)}:{node.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS_INTO_TEXT:
            assert fine(node.func.value), f"{name_of(path)}:{node.lineno}"


@for_each([path for path in PARTS if path.relative_to(ROOT).parts[:2] in {
    ("planner", room) for room in ("duckdb_sql", "scalar", "functions", "lower", "streams")}])
def test_nobody_changes_a_tree(path: Path) -> None:
    """Trees of DuckDB SQL share their parts: a change in one would be one in others, of other statements too.

    For the same reason `made` makes nodes: sqlglot's constructors tell parts of the node, and so keep it in memory.
    """
    for node in nodes(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = (node.func.attr, len(node.args))
            assert given not in {("set", 2), ("append", 2), ("replace", 1)}, f"{name_of(path)}:{node.lineno}"
            makes_node = ast.unparse(node.func.value) == "exp" and node.func.attr[0].isupper() and bool(node.keywords)
            assert not makes_node or path.stem == "duckdb_print" or "streams" in path.parts, (
                f"{name_of(path)}:{node.lineno}")
        targets = node.targets if isinstance(node, ast.Assign) else []
        assert not any(isinstance(one, ast.Subscript) and isinstance(one.value, ast.Attribute)
                       and one.value.attr == "args" for one in targets), f"{name_of(path)}:{node.lineno}"


def called_name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@cache
def ruled_out() -> dict[tuple[str, ...], str]:
    """Returns the words that the glossary has in its last column, and those that it has instead."""
    glossary = (ROOT / "docs/architecture.md").read_text("utf-8").partition("## Words")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", glossary, flags=re.MULTILINE)
    return {tuple(word.split()): instead for instead, words in rows[1:] for word in words.split(", ")}


def defined_names(path: Path) -> Iterator[tuple[str, int]]:
    """Yields the names of a module, its classes, functions, parameters and fields, with line numbers."""
    yield path.stem, 1
    for node in nodes(path):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.lineno


@for_each(PARTS)
def test_names_are_made_of_the_words_of_the_glossary(path: Path) -> None:
    """One word for one thing: those that the glossary rules out don't come back."""
    for name, line in defined_names(path):
        words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
        for ruled, instead in ruled_out().items():
            found = any(tuple(words[n:n + len(ruled)]) == ruled for n in range(len(words)))
            assert not found, f"{name_of(path)}:{line}: {name}: say {instead}"


#: Names that PEP 249 gives to errors of its own.
OF_PEP_249 = frozenset({"InternalError", "NotSupportedError"})


def test_a_class_name_has_one_meaning() -> None:
    """No two classes of the parts are called the same, those of a module's own (with an underscore) included."""
    places: dict[str, list[str]] = {}
    for path in PARTS:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and node.name not in OF_PEP_249:
                places.setdefault(node.name, []).append(name_of(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_file_name_has_one_meaning() -> None:
    """A file is found by its name: no two of the parts are called the same."""
    found = Counter(path.name for path in PARTS if path.name not in ("__init__.py", "__main__.py"))
    assert [name for name, number in found.items() if number > 1] == []


@for_each(PARTS)
def test_nothing_is_too_long(path: Path) -> None:
    """A class has at most 400 lines, a function 60, a constructor eight parameters."""
    for node in nodes(path):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= (400 if isinstance(node, ast.ClassDef) else 60), f"{name_of(path)}: {node.name}: {lines}"
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            given = len(node.args.args) + len(node.args.kwonlyargs) - 1
            assert given <= 8, f"{name_of(path)}:{node.lineno}: {given} parameters"


#: What can run code that is read, and the files that may have it, with what keeps it from doing so.
RUNS_WHAT_IT_READS: dict[str, tuple[str, ...]] = {
    # Messages between processes that have proved to know the secret, of few packages' classes; states of users'
    # aggregates, with their own classes only.
    "pickle": ("tasks/protocol/wire.py", "tasks/compute/function_loader.py"),
    "marshal": (), "shelve": (), "dill": (), "joblib": (), "cloudpickle": (),
}


@for_each(PARTS)
def test_what_is_read_is_data(path: Path) -> None:
    """Nothing that is read from disk, bucket or network can run: no pickle, no evaluated text."""
    for module, line in imported_modules(path):
        allowed = RUNS_WHAT_IT_READS.get(module.split(".")[-1]) or RUNS_WHAT_IT_READS.get(module.split(".")[0])
        if allowed is not None or {*module.split(".")} & RUNS_WHAT_IT_READS.keys():
            assert name_of(path) in (allowed or ()), f"{name_of(path)}:{line}: {module} may run what it reads"
    for node in nodes(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec"), f"{name_of(path)}:{node.lineno}: evaluates text"
        if isinstance(node, ast.Call) and any(keyword.arg == "allow_pickle" for keyword in node.keywords):
            raise AssertionError(f"{name_of(path)}:{node.lineno}: NumPy reads pickles there")


@for_each(sources("tests"))
def test_every_test_says_what_it_expects(path: Path) -> None:
    """Each test has a sentence."""
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            assert ast.get_docstring(node), f"{name_of(path)}:{node.lineno}: {node.name} has no docstring"


@cache
def importers() -> dict[str, set[Path]]:
    """Returns who imports each dotted name or any name below it."""
    users: dict[str, set[Path]] = {}
    for path in PROGRAMS:
        for module, _ in imported_modules(path):
            words = module.split(".")
            for length in range(1, len(words) + 1):
                users.setdefault(".".join(words[:length]), set()).add(path)
    return users


@for_each(PARTS)
def test_no_module_is_dead(path: Path) -> None:
    """Each module is imported by another one, started by a command, or named in the configuration."""
    if path.name in ("__init__.py", "__main__.py"):
        return
    module = "penstock." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
    started = (ROOT / "pyproject.toml").read_text("utf-8") + (ROOT / "conf" / "spark-defaults.conf").read_text("utf-8")
    others = importers().get(module, set()) - {path}
    assert others or module in started, f"{module} is imported nowhere"
