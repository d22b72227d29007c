"""SQLAlchemy's dialect `penstock://`: with the engine here and at a server, pandas, Polars, and what is reflected."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars
import pytest
import sqlalchemy as sa
from kits.basics.extreme_values import CASES, NAMES
from kits.engines.served_here import ServedHere
from sqlalchemy import orm

import penstock
from penstock.shell.api.sqlalchemy_types import SizedInteger

METERS = sa.Table(
    "meters", sa.MetaData(), sa.Column("ts", sa.TIMESTAMP, primary_key=True), sa.Column("v", sa.Float),
    sa.Column("Place", sa.String(20), penstock_tag=True), sa.Column("g", sa.Integer, penstock_tag=True), comment="it's")
NOON = dt.datetime(2024, 5, 1, 12)


@pytest.fixture(params=["embedded", "served"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """An engine of SQLAlchemy with the database d, without connections of its own when it is done."""
    if request.param == "embedded":
        with penstock.connect(tmp_path, {"timezone": "UTC"}) as connection:
            connection.execute("CREATE DATABASE d VGROUPS 1 KEEP 36500")
            made = sa.create_engine(f"penstock:///{tmp_path}?timezone=UTC&database=d")
            yield made
            made.dispose()
        return
    with ServedHere(tmp_path / "data", {"timezone": "UTC", "queryProcess": False}) as here:
        with here.own() as connection:
            connection.execute("CREATE DATABASE d VGROUPS 1 KEEP 36500")
        made = sa.create_engine(f"penstock://127.0.0.1:{here.port}/d?timezone=UTC")
        yield made
        made.dispose()


def test_data_frames_are_written_and_read(engine: sa.Engine) -> None:
    """`to_sql` makes tables, appends and replaces; `read_sql` gives the same rows back, of pandas and of Polars."""
    frame = pd.DataFrame({"v": [1, 2], "s": ["a'\\b", "ü"], "ts": [NOON, NOON + dt.timedelta(seconds=1)],
                          "b": [True, False], "f": [1.5, None]})
    frame.to_sql("frame", engine, index=False)
    back = pd.read_sql_table("frame", engine)[list(frame.columns)]
    assert back.astype(object).where(back.notna(), None).values.tolist() == \
        frame.astype(object).where(frame.notna(), None).values.tolist()
    frame["ts"] += pd.Timedelta("1h")
    frame.to_sql("frame", engine, index=False, if_exists="append")
    assert pd.read_sql("SELECT count(*) AS n FROM frame", engine).n.tolist() == [4]
    polars.DataFrame({"ts": [NOON], "w": [1.5]}).write_database("frame", engine, if_table_exists="replace")
    assert polars.read_database("SELECT * FROM frame", engine).to_dicts() == [{"ts": NOON, "w": 1.5}]
    with pytest.raises(sa.exc.CompileError, match="table no_time: no column is a timestamp"):
        pd.DataFrame({"v": [1]}).to_sql("no_time", engine)


def test_tables_are_made_filled_and_reflected(engine: sa.Engine) -> None:
    """Databases are schemas, super tables are tables, tags are columns that say so; child tables are found by name."""
    METERS.create(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(sa.table("meters", *map(sa.column, ("tbname", "Place", "g", "ts", "v")))), [
            {"tbname": f"m{n}", "Place": "x", "g": n, "ts": NOON, "v": n / 2} for n in range(3)])
        rows = connection.execute(sa.select(METERS).where(METERS.c.g > 0).order_by(METERS.c.g.desc()).limit(1)).all()
        assert rows == [(NOON, 1.0, "x", 2)]
        window = sa.text("SELECT _wstart, count(*) FROM meters WHERE g < :g INTERVAL(1m)")
        assert connection.execute(window, {"g": 2}).all() == [(NOON, 2)]
    found = sa.inspect(engine)
    assert found.get_table_names(schema="d") == ["meters"]
    assert "d" in found.get_schema_names()
    assert [(column["name"], str(column["type"]), column["dialect_options"]["penstock_tag"], column["nullable"])
            for column in found.get_columns("meters")] == [
        ("ts", "TIMESTAMP", False, False), ("v", "DOUBLE", False, True), ("Place", "VARCHAR(20)", True, True),
        ("g", "INTEGER", True, True)]
    assert found.get_pk_constraint("m1")["constrained_columns"] == ["ts"]
    assert found.get_table_comment("meters") == {"text": "it's"}
    assert (found.has_table("m1"), found.has_table("m9")) == (True, False)
    again = sa.Table("meters", sa.MetaData(), schema="d", autoload_with=engine)
    with engine.connect() as connection:
        assert connection.execute(sa.select(again.c.g).where(again.c.Place == "x").order_by("g")).scalars().all() == \
            [0, 1, 2]
        assert connection.execute(sa.select(sa.func.now() > dt.datetime(2020, 1, 1))).scalar() is True


def test_views_are_reflected(engine: sa.Engine) -> None:
    """They have names, a definition and columns, which may be read."""
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE t (ts TIMESTAMP, v INT)"))
        connection.execute(sa.text("INSERT INTO t VALUES (now, 2)"))
        connection.execute(sa.text("CREATE VIEW w AS SELECT v + 1 AS more FROM t"))
        found = sa.inspect(engine)
        assert (found.get_view_names(), found.get_table_names()) == (["w"], ["t"])
        assert found.get_view_definition("w") == "SELECT v + 1 AS more FROM t"
        with pytest.raises(sa.exc.NoSuchTableError):
            found.get_view_definition("t")
        assert found.has_table("w")
        assert connection.execute(sa.select(sa.Table("w", sa.MetaData(), autoload_with=engine))).all() == [(3,)]


def test_every_type_is_reflected(engine: sa.Engine) -> None:
    """A table that is made from what was reflected has the same types."""
    types = ("TIMESTAMP, b BOOL, t TINYINT, u TINYINT UNSIGNED, i INT, j INT UNSIGNED, k BIGINT UNSIGNED, f FLOAT, "
             "g DOUBLE, c VARCHAR(7), n NCHAR(5), x VARBINARY(9), d DECIMAL(20,3)")
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE a (ts {types})"))
        table = sa.Table("a", sa.MetaData(), autoload_with=connection)
        assert isinstance(table.c.u.type, SizedInteger)
        table.to_metadata(sa.MetaData(), name="b").create(connection)
        made = [connection.execute(sa.text(f"SHOW CREATE TABLE {name}")).all()[0][1] for name in "ab"]
    assert made[1].replace("CREATE TABLE b", "CREATE TABLE a") == made[0]


def test_objects_are_mapped(engine: sa.Engine) -> None:
    """Sessions of the ORM write and read objects; there is nothing to roll back, and rows aren't updated."""
    class Base(orm.DeclarativeBase):
        pass

    class Reading(Base):
        __tablename__ = "readings"
        ts: orm.Mapped[dt.datetime] = orm.mapped_column(primary_key=True)
        select: orm.Mapped[str | None] = orm.mapped_column(sa.String(20))

    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add_all([Reading(ts=NOON, select="a"), Reading(ts=NOON + dt.timedelta(hours=1), select="b")])
        session.commit()
        assert session.scalars(sa.select(Reading.select).where(Reading.select == "b")).all() == ["b"]
        session.get_one(Reading, NOON).select = "c"
        with pytest.raises(sa.exc.CompileError, match="UPDATE is not supported"):
            session.commit()


def test_names_of_any_kind_stay_apart(engine: sa.Engine) -> None:
    """Those of columns and tables that differ in case only, or have quotes, in tables that are made and reflected."""
    names = sorted({*NAMES, *CASES})
    for schema, name in (("d", "tick`s"), (None, "V"), ("d", "v")):
        table = sa.Table(name, sa.MetaData(), sa.Column("ts", sa.TIMESTAMP, primary_key=True),
                         *(sa.Column(column, sa.Integer) for column in names), schema=schema)
        table.create(engine)
        again = sa.Table(name, sa.MetaData(), schema=schema, autoload_with=engine)
        with engine.begin() as connection:
            connection.execute(table.insert(), {"ts": NOON, **{column: n for n, column in enumerate(names)}})
            [row] = connection.execute(sa.select(again).where(again.c["it's"] == names.index("it's"))).mappings()
        assert {column: row[again.c[column]] for column in names} == {column: n for n, column in enumerate(names)}
        assert list(row) == ["ts", *names]


def test_what_the_dialect_has_not_is_refused(engine: sa.Engine) -> None:
    """Errors name what isn't there; names cannot end their quotes; SQLAlchemy's classes of errors are right."""
    statements: list[tuple[Any, str]] = [
        (sa.select(METERS.c.v).where(METERS.c.Place.like("a", escape="/")), "ESCAPE is not supported"),
        (sa.select(sa.select(METERS.c.v).cte()), "WITH is not supported"),
        (sa.schema.CreateTable(sa.Table("t", sa.MetaData(), sa.Column("a", sa.Time), sa.Column("b", sa.DateTime))),
         "no type for times of day"),
    ]
    with engine.connect() as connection:
        for statement, said in statements:
            with pytest.raises(sa.exc.CompileError, match=said):
                connection.execute(statement)
        with pytest.raises(sa.exc.ProgrammingError, match="nothing does not exist"):
            connection.execute(sa.text("SELECT * FROM nothing"))
        connection.execute(sa.text("CREATE TABLE t (ts TIMESTAMP, v INT)"))
        with pytest.raises(sa.exc.ProgrammingError, match="column a` FROM b -- does not exist"):
            connection.execute(sa.select(sa.column("a` FROM b --")).select_from(sa.table("t")))
        with pytest.raises(sa.exc.NoSuchTableError):
            sa.Table("nothing", sa.MetaData(), autoload_with=connection)


@pytest.mark.parametrize(("url", "host"), [
    ("penstock://u:p@alpha,beta,gamma/d", "alpha,beta,gamma"), ("penstock://u:p@alpha/d", "alpha"),
    ("penstock://u:p@/d?host=alpha:8815&host=beta:8816", "alpha:8815,beta:8816"),
    ("penstock:///d?host=alpha:8815", "alpha:8815")])
def test_a_url_names_all_nodes_of_a_cluster(url: str, host: str) -> None:
    """With one port for all, or with ports of their own, as PostgreSQL's drivers have them."""
    made = sa.create_engine(url)
    _, arguments = made.dialect.create_connect_args(sa.engine.make_url(url))
    assert (arguments["host"], arguments["database"], arguments["config"]) == (host, "d", None)
