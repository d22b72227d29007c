"""Users' functions in batch queries, and the statements about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kits.engines.embedded import Embedded
from kits.streams.product_function import PRODUCT

from penstock.common.errors import (
    AlreadyExistsError,
    InUseError,
    InvalidStatementError,
    NotFoundError,
    NotSupportedError,
    PenstockError,
    SqlSyntaxError,
    UserFunctionError,
)

CODE = '''
import datetime
import math

import pyarrow as pa
import pyarrow.compute as pc


def scaled(x, factor):
    return pc.multiply(x, factor)


def defined(x):
    return pc.is_valid(x)


def kind(*columns):
    return pa.array([str(columns[-1].type)] * len(columns[0]))


def shout(text):
    return pc.utf8_upper(text)


def next_day(ts):
    return pc.add(ts, pa.scalar(datetime.timedelta(days=1), pa.duration("ms")))


def sure(x, *, wanted):
    return x


def picky(x):
    if pc.any(pc.less(x, 0)).as_py():
        raise ValueError("negative value")
    return pc.sqrt(x)


def short(x):
    return x[:0]


def listed(x):
    return x.to_pylist()


def integers(x):
    return x.cast(pa.int64())


def nothing(x):
    return pa.nulls(len(x))


def columnless():
    return None

''' + PRODUCT + '''

class Joined:
    """The texts in the order in which they come, with their times."""

    def init(self):
        return []

    def accumulate(self, state, times, texts):
        return state + [f"{time:%S}{text}" for time, text in zip(times.to_pylist(), texts.to_pylist())]

    def merge(self, left, right):
        return left + right

    def finish(self, state):
        return " ".join(state)


class Broken(Product):
    def accumulate(self, state, values):
        raise RuntimeError("no sums today")


class Wordy(Product):
    def finish(self, state):
        return "many words"


class Unmerged:
    def init(self):
        return 0

    def accumulate(self, state, values):
        return state

    def finish(self, state):
        return state


class Narrow(Product):
    def merge(self, state):
        return state


class Unpicklable(Product):
    def init(self):
        return lambda: None


class Picky(Product):
    def __init__(self, setting):
        self.setting = setting
'''


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Embedded]:
    """An engine with a module of functions and a table of four rows."""
    (tmp_path / "udf").mkdir(parents=True)
    (tmp_path / "udf" / "maths.py").write_text(CODE)
    engine = Embedded(tmp_path)
    engine.all(
        "create database p vgroups 2 keep 36500d", "use p",
        "create stable m (ts timestamp, v int, d double, note varchar(10)) tags (site varchar(10))",
        "insert into a using m tags ('x') values (1000, 1, 1.5, 'p') (2000, 2, null, 'q')"
        " b using m tags ('y') values (1500, 3, -2.5, null) (12000, null, 4.0, 's')",
    )
    yield engine
    engine.close()


def create(db: Embedded, name: str, source: str, types: str = "(DOUBLE)", result: str = "DOUBLE",
           aggregate: str = "") -> None:
    db.execute(f"create {aggregate} function {name}{types} returns {result} language python as 'maths:{source}'")


def product(db: Embedded, name: str = "product", source: str = "Product") -> None:
    create(db, name, source, aggregate="aggregate")


# --- scalar functions ---------------------------------------------------------------------------------------------


def test_a_scalar_function_works_on_columns_constants_and_nulls(db: Embedded) -> None:
    """Arguments are converted to what is declared; NULLs come and go as Arrow nulls."""
    create(db, "scaled", "scaled", "(DOUBLE, DOUBLE)")
    create(db, "defined", "defined", "(DOUBLE)", "BOOL")
    rows = db.run("select scaled(v, 2), scaled(d + 1, v), defined(d), scaled(null, 1) from m order by ts")
    assert rows == [(2.0, 2.5, True, None), (6.0, -4.5, True, None), (4.0, None, False, None),
                    (None, None, True, None)]
    assert db.run("select scaled(2, 3)") == [(6.0,)]


def test_a_users_function_takes_the_place_of_one_of_duckdbs(db: Embedded) -> None:
    """A function of the dialect keeps its place; once the user's is gone, DuckDB's is there again."""
    assert db.run("select gcd(12, 18)") == [(6,)]
    create(db, "gcd", "scaled", "(DOUBLE, DOUBLE)")
    assert db.run("select gcd(12, 18)") == [(216.0,)]
    with pytest.raises(AlreadyExistsError, match="is a function of the dialect"):
        create(db, "coalesce", "scaled", "(DOUBLE, DOUBLE)")
    db.execute("drop function gcd")
    assert db.run("select gcd(12, 18)") == [(6,)]


def test_functions_stand_wherever_expressions_do(db: Embedded) -> None:
    """WHERE, PARTITION BY, windows, aggregates and their arguments, HAVING, ORDER BY and sub-queries call them."""
    create(db, "scaled", "scaled", "(DOUBLE, DOUBLE)")
    create(db, "shout", "shout", "(VARCHAR)", "VARCHAR(20)")
    assert db.run("select v from m where scaled(v, 2) > 3 order by scaled(v, -1)") == [(3,), (2,)]
    assert db.run("select shout(site), scaled(sum(scaled(v, 10)), 0.5) from m partition by shout(site) order by 1"
                  ) == [("X", 15.0), ("Y", 15.0)]
    assert db.run("select shout(site), count(*) from m group by shout(site) having scaled(count(*), 1) > 1 order by 1"
                  ) == [("X", 2), ("Y", 2)]
    assert db.run("select cast(_wstart as bigint), scaled(max(v), 2) from m interval(10s) having count(*) > 1") == [
        (0, 6.0)]
    assert db.run("select max(w) from (select ts, scaled(v, 3) w from m)") == [(9.0,)]
    assert db.run("select count(*) from m state_window(shout('x'))") == [(4,)]


def test_texts_are_cut_to_the_declared_length(db: Embedded) -> None:
    """VARCHAR(n) has n bytes, NCHAR(n) n characters, of scalar functions and of aggregates."""
    create(db, "bytes", "shout", "(VARCHAR)", "VARCHAR(5)")
    create(db, "letters", "shout", "(VARCHAR)", "NCHAR(5)")
    create(db, "joined", "Joined", "(TIMESTAMP, VARCHAR)", "VARCHAR(7)", "aggregate")
    assert db.run("select bytes('éèêë'), letters('éèêëöä')") == [("ÉÈ", "ÉÈÊËÖ")]
    assert db.run("select joined(ts, note) from m") == [("01p 01N",)]


def test_undeclared_arguments_take_any_type(db: Embedded) -> None:
    """Without a list of types the code sees each argument's own Arrow type; the signature counts them."""
    create(db, "kind", "kind", "", "VARCHAR")
    row = "select kind(v), kind(d), kind(note), kind(ts), kind(v > 1), kind(v, ts) from m limit 1"
    assert db.run(row) == [("int32", "double", "string", "timestamp[ms]", "bool", "timestamp[ms]")]
    create(db, "scaled", "scaled", "")
    with pytest.raises(InvalidStatementError, match="takes 2 arguments, not 1"):
        db.run("select scaled(d) from m")


def test_timestamps_have_the_precision_of_the_database(db: Embedded) -> None:
    """TIMESTAMP arguments and results are Arrow timestamps, and times in SQL."""
    create(db, "next_day", "next_day", "(TIMESTAMP)", "TIMESTAMP")
    assert db.run("select cast(next_day(ts) as bigint) - cast(ts as bigint) from m limit 1") == [(86_400_000,)]
    create(db, "kind", "kind", "(TIMESTAMP)", "VARCHAR")
    db.all("create database q precision 'ns'", "create table q.n (ts timestamp, v int)",
           "insert into q.n values (1700000000000000000, 1)")
    assert db.run("select kind(ts) from q.n") == [("timestamp[ns]",)]


def test_many_rows_come_in_several_arrays(db: Embedded) -> None:
    """A query over more rows than DuckDB computes at once gives all of them."""
    create(db, "scaled", "scaled", "(DOUBLE, DOUBLE)")
    values = " ".join(f"({n * 10}, {n}, {n}, null)" for n in range(5000))
    db.execute(f"insert into c using m tags ('z') values {values}")
    assert db.run("select count(*), sum(scaled(d, 2)), sum(d) from c") == [(5000, 24_995_000.0, 12_497_500.0)]


@pytest.mark.parametrize(("name", "text"), [
    ("picky", "function picky(DOUBLE) failed: ValueError: negative value (in maths.py, line "),
    ("short", "function short(DOUBLE) failed: it returned 0 values for "),
    ("listed", "function listed(DOUBLE) failed: it returned list, not a pyarrow.Array"),
    ("integers", "function integers(DOUBLE) failed: "),
])
def test_a_function_that_fails_ends_the_query(db: Embedded, name: str, text: str) -> None:
    """The error names the function, the types of its arguments, the exception and the line."""
    create(db, name, name)
    with pytest.raises(UserFunctionError) as caught:
        db.run(f"select {name}(d) from m")
    assert text in str(caught.value)


def test_a_wrong_type_is_told(db: Embedded) -> None:
    """An array of another type than declared is refused; one of nulls only is as good as any."""
    create(db, "whole", "integers", "(INT)")
    with pytest.raises(UserFunctionError, match=r"it returned int64, declared is DOUBLE: cast the result to double"):
        db.run("select whole(v) from m")
    create(db, "nothing", "nothing")
    assert db.run("select nothing(d) from m limit 1") == [(None,)]


def test_calls_are_checked_when_planned(db: Embedded) -> None:
    """Wrong numbers and kinds of arguments are errors of the statement, with the place."""
    create(db, "scaled", "scaled", "(DOUBLE, DOUBLE)")
    with pytest.raises(InvalidStatementError, match="takes 2 arguments, not 1") as caught:
        db.run("select scaled(d) from m")
    assert caught.value.position is not None
    with pytest.raises(InvalidStatementError, match=r"argument 1 \(double\) of scaled\(\) must be a number, not VARCH"):
        db.run("select scaled(note, 1) from m")
    with pytest.raises(InvalidStatementError, match="does not take"):
        db.run("select scaled(*, 1) from m")
    with pytest.raises(NotFoundError, match="function scales"):
        db.run("select scales(d, 1) from m")


# --- aggregates ---------------------------------------------------------------------------------------------------


def test_an_aggregate_works_with_groups_and_windows(db: Embedded) -> None:
    """GROUP BY, PARTITION BY, INTERVAL, no groups, and no rows."""
    product(db)
    assert db.run("select product(v) from m") == [(6.0,)]
    assert db.run("select site, product(v), count(*) from m group by site order by site") == [
        ("x", 2.0, 2), ("y", 3.0, 2)]
    assert db.run("select cast(_wstart as bigint), product(d) from m partition by site interval(10s) order by 1, 2"
                  ) == [(0, -2.5), (0, 1.5), (10_000, 4.0)]
    assert db.run("select product(v) from m where v > 100") == []
    assert db.run("select product(v + 1) + sum(v) from m session(ts, 5s)") == [(30.0,), (None,)]


def test_rows_come_in_order_of_time(db: Embedded) -> None:
    """Within a group the columns are ordered by time, and timestamps are timestamps."""
    create(db, "joined", "Joined", "(TIMESTAMP, VARCHAR)", "VARCHAR(100)", "aggregate")
    assert db.run("select joined(ts, note) from m") == [("01p 01None 02q 12s",)]


def test_an_aggregate_that_fails_ends_the_query(db: Embedded) -> None:
    """Exceptions and values of a wrong type are told with the function and its arguments."""
    product(db, "broken", "Broken")
    with pytest.raises(UserFunctionError, match=r"function broken\(DOUBLE\) failed: RuntimeError: no sums today"):
        db.run("select broken(v) from m")
    product(db, "wordy", "Wordy")
    with pytest.raises(UserFunctionError, match="it returned 'many words', declared is DOUBLE"):
        db.run("select wordy(v) from m")


def test_aggregates_are_refused_where_rows_are_meant(db: Embedded) -> None:
    """WHERE and other aggregates take no aggregate, also no user's."""
    product(db)
    for text in ("select v from m where product(v) > 1", "select sum(product(v)) from m"):
        with pytest.raises(InvalidStatementError, match="product"):
            db.run(text)


# --- statements ---------------------------------------------------------------------------------------------------


def test_functions_are_shown_and_survive_a_restart(db: Embedded) -> None:
    """SHOW FUNCTIONS and ins_functions list them; the catalog keeps them."""
    create(db, "scaled", "scaled", "(DOUBLE, DECIMAL(10, 2))")
    db.execute("create aggregate function product returns double language python as 'maths:Product' comment 'times'")
    wanted = [("scaled", 0, "DOUBLE", "maths:scaled", "DOUBLE, DECIMAL(10,2)", None),
              ("product", 1, "DOUBLE", "maths:Product", None, "times")]
    text = "select name, aggregate, output_type, func_body, arguments, comment from information_schema.ins_functions"
    assert db.run(text) == wanted
    db.reopen()
    assert db.run(text) == wanted
    assert [row[0] for row in db.run("show functions")] == ["scaled", "product"]
    assert db.run("select product(v) from m") == [(6.0,)]


def test_tdengines_spelling_with_a_file(db: Embedded, tmp_path: Path) -> None:
    """A path to a file gives the function of the same name; LANGUAGE may be quoted, BUFSIZE means nothing here."""
    other = tmp_path / "elsewhere" / "half.py"
    other.parent.mkdir()
    other.write_text("import pyarrow.compute as pc\ndef half(x):\n    return pc.divide(x.cast('double'), 2.0)\n")
    db.execute(f"create function half as '{other}' outputtype double language 'Python' bufsize 16")
    assert db.run("select half(v) from m order by ts limit 1") == [(0.5,)]
    db.execute("create function other (int) returns double as 'maths.py:integers' language python")
    with pytest.raises(NotSupportedError, match="functions in C"):
        db.execute("create function half as '/lib/half.so' outputtype double language 'C'")


def test_create_or_replace_takes_the_new_code(db: Embedded, tmp_path: Path) -> None:
    """The module is read again, however short ago it changed; the old version is gone."""
    module = tmp_path / "udf" / "one.py"
    for n in range(3):
        module.write_text(f"import pyarrow as pa\ndef one(x):\n    return pa.array([{n}.0] * len(x))\n")
        db.execute("create or replace function one(double) returns double language python as 'one:one'")
        assert db.run("select one(1)") == [(float(n),)]


def test_modules_import_their_neighbours_and_installed_packages_are_found(db: Embedded, tmp_path: Path) -> None:
    """A module in a package of the directory uses relative imports; the Python path comes second."""
    package = tmp_path / "udf" / "tools"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "base.py").write_text("FACTOR = 3.0\n")
    (package / "times.py").write_text(
        "import pyarrow.compute as pc\nfrom .base import FACTOR\ndef times(x):\n    return pc.multiply(x, FACTOR)\n")
    db.execute("create function times(double) returns double language python as 'tools.times:times'")
    assert db.run("select times(2)") == [(6.0,)]
    db.execute("create function root(double) returns double language python as 'pyarrow.compute:sqrt'")
    assert db.run("select root(9)") == [(3.0,)]


@pytest.mark.parametrize(("aggregate", "source", "types", "message"), [
    ("", "nowhere:f", "(INT)", "there is no module nowhere in "),
    ("", "missing.py", "(INT)", "there is no file "),
    ("", "maths", "(INT)", "'maths' names no function"),
    ("", "maths:nosuch", "(INT)", "maths.py has no nosuch"),
    ("", "maths:scaled", "(INT)", r"scaled\(x, factor\) doesn't take 1 argument"),
    ("", "maths:columnless", "", r"columnless\(\) takes no column"),
    ("", "maths:sure", "(INT)", "needs wanted by name"),
    ("", "maths:Product", "(INT)", "maths:Product is no function, but the class Product"),
    ("", "bad:f", "(INT)", "importing bad failed: ZeroDivisionError"),
    ("", "maths:1x", "(INT)", "is no place of code"),
    ("aggregate", "maths:scaled", "(INT)", "is no class, but a value of type function"),
    ("aggregate", "maths:Unmerged", "(INT)", "class Unmerged has no method merge"),
    ("aggregate", "maths:Narrow", "(INT)", r"merge\(state\) doesn't take 2 arguments"),
    ("aggregate", "maths:Product", "(INT, INT)", "accumulate.* doesn't take the state and 2 arguments"),
    ("aggregate", "maths:Unpicklable", "(INT)", "cannot be made or pickled"),
    ("aggregate", "maths:Picky", "(INT)", r"Picky\(\) failed: TypeError"),
])
def test_code_that_does_not_fit_is_refused_at_create(
    db: Embedded, tmp_path: Path, aggregate: str, source: str, types: str, message: str
) -> None:
    """What is missing or of a wrong shape is told by CREATE, and the catalog stays as it was."""
    (tmp_path / "udf" / "bad.py").write_text("1 / 0\n")
    with pytest.raises(UserFunctionError, match=message):
        db.execute(f"create {aggregate} function f{types} returns double language python as '{source}'")
    assert db.run("show functions") == []


@pytest.mark.parametrize(("text", "error", "message"), [
    ("create function sum(int) returns int language python as 'maths:defined'", AlreadyExistsError, "of the dialect"),
    ("create function defined(int) returns int language python as 'maths:defined'", AlreadyExistsError,
     "already exists"),
    ("create function `a b`(int) returns int language python as 'maths:defined'", InvalidStatementError,
     "cannot be the name"),
    ("create function f(int) language python as 'maths:defined'", SqlSyntaxError, "RETURNS"),
    ("create function f(int) returns int language python", SqlSyntaxError, "AS 'module:function'"),
    ("create function f(int) returns int as 'maths:defined'", SqlSyntaxError, "LANGUAGE PYTHON"),
    ("create function f() returns int language python as 'maths:defined'", SqlSyntaxError, "type"),
    ("create function f returns int returns int", SqlSyntaxError, "twice"),
    ("drop function nosuch", NotFoundError, "function nosuch does not exist"),
])
def test_statements_that_make_no_sense(
    db: Embedded, text: str, error: type[PenstockError], message: str
) -> None:
    """Names that are taken or impossible, and clauses that are missing."""
    create(db, "defined", "defined", "(INT)", "BOOL")
    with pytest.raises(error, match=message):
        db.execute(text)


def test_if_exists_and_if_not_exists(db: Embedded) -> None:
    """Both make a statement do nothing instead of failing."""
    create(db, "defined", "defined", "(INT)", "BOOL")
    db.execute("create function if not exists defined(int) returns bool language python as 'maths:nosuch'")
    db.execute("drop function defined")
    db.execute("drop function if exists defined")
    with pytest.raises(NotFoundError):
        db.run("select defined(v) from m")


def test_a_function_that_a_stream_calls_stays(db: Embedded) -> None:
    """DROP and OR REPLACE are refused with TDengine's code until the stream is dropped, also after a restart."""
    create(db, "scaled", "scaled", "(DOUBLE, DOUBLE)")
    product(db)
    db.execute("create stream s into o as select _wstart, product(scaled(v, 2)) pr from m interval(10s)")
    db.reopen()
    for text in ("drop function scaled", "drop function product",
                 "create or replace function scaled(double) returns double language python as 'maths:nothing'"):
        with pytest.raises(InUseError, match="stream s calls it") as caught:
            db.execute(text)
        assert caught.value.code == 0x03F3
    db.all("drop stream s", "drop function scaled", "drop function product")


def test_a_lost_module_is_told_by_the_query(db: Embedded, tmp_path: Path) -> None:
    """A module that goes away after CREATE FUNCTION is an error of the query, not a crash."""
    create(db, "scaled", "scaled", "(DOUBLE, DOUBLE)")
    (tmp_path / "udf" / "maths.py").unlink()
    with pytest.raises(UserFunctionError, match="there is no module maths"):
        db.run("select scaled(v, 2) from m")


def test_all_types_go_in_and_come_out(db: Embedded, tmp_path: Path) -> None:
    """Each declared type arrives as its Arrow type and is returned as it is."""
    (tmp_path / "udf" / "same.py").write_text("def same(x):\n    return x\n")
    samples: dict[str, tuple[str, Any]] = {
        "BOOL": ("true", True), "TINYINT": ("-3", -3), "SMALLINT UNSIGNED": ("300", 300), "BIGINT": ("7", 7),
        "BIGINT UNSIGNED": ("8", 8), "FLOAT": ("0.5", 0.5), "DOUBLE": ("0.25", 0.25), "VARCHAR(10)": ("'é'", "é"),
        "NCHAR(10)": ("'ü'", "ü"),
    }
    for number, (kind, (literal, value)) in enumerate(samples.items()):
        db.execute(f"create function same{number}({kind}) returns {kind} language python as 'same:same'")
        table = db.execute(f"select same{number}({literal}) x, same{number}(null) y").table
        assert table is not None
        assert table.column("x").to_pylist() == [value], kind
        assert table.column("y").to_pylist() == [None], kind
    assert pa.types.is_float32(db.execute("select same5(1)").table.column(0).type)  # type: ignore[union-attr]
