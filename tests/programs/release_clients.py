"""Clients that are no part of Penstock, one of each family: each writes a row and reads all, and says what it found.

Needs the packages of `PACKAGES` alone, not Penstock. The rows are of the table `power.visits`, which must be there.
"""

from __future__ import annotations

import argparse
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

PACKAGES = ("adbc-driver-flightsql", "adbc-driver-manager", "pyarrow", "psycopg[binary]", "taospy", "taos-ws-py",
            "influxdb-client")
_COUNT = "SELECT count(*) FROM power.visits"


def _insert(number: int, family: str) -> str:
    return f"INSERT INTO power.visits VALUES ({1_700_000_000_000 + number}, '{family}')"


def flight_sql(to: argparse.Namespace, insert: str) -> Any:
    """ADBC's driver."""
    import adbc_driver_flightsql.dbapi as adbc

    login = {"username": to.user, "password": to.password}
    with adbc.connect(f"grpc://127.0.0.1:{to.flight}", db_kwargs=login) as connection, connection.cursor() as cursor:
        cursor.execute(insert)
        cursor.execute(_COUNT)
        return cursor.fetchone()


def postgresql(to: argparse.Namespace, insert: str) -> Any:
    """psycopg."""
    import psycopg

    with psycopg.connect(host="127.0.0.1", port=to.postgres, user=to.user, password=to.password, dbname="power",
                         autocommit=True) as connection:
        connection.execute(insert)
        return connection.execute(_COUNT).fetchone()


def rest(to: argparse.Namespace, insert: str) -> Any:
    """TDengine's connector for REST."""
    import taosrest

    url = f"http://127.0.0.1:{to.taos}"
    with closing(taosrest.connect(url=url, user=to.user, password=to.password, timezone="UTC")) as connection:
        connection.execute(insert)
        return connection.query(_COUNT).data[0]


def websocket(to: argparse.Namespace, insert: str) -> Any:
    """TDengine's connector for WebSocket."""
    import taosws

    cursor = taosws.connect(f"ws://{to.user}:{quote(to.password)}@127.0.0.1:{to.taos}?timezone=UTC").cursor()
    cursor.execute(insert)
    cursor.execute(_COUNT)
    return cursor.fetchall()[0]


def line_protocol(to: argparse.Namespace, insert: str) -> Any:
    """InfluxDB 2's client, which only writes; what it wrote is read over HTTP."""
    from influxdb_client import InfluxDBClient
    from influxdb_client.client.write_api import SYNCHRONOUS

    url = f"http://127.0.0.1:{to.taos}"
    with InfluxDBClient(url, token=f"{to.user}:{to.password}", org="any") as client:
        line = "rooms,place=hall warmth=21.5 1700000000000000000"
        client.write_api(write_options=SYNCHRONOUS).write("power", record=line)
    login = b64encode(f"{to.user}:{to.password}".encode()).decode()
    query = Request(f"{url}/rest/sql", b"SELECT place, warmth FROM power.rooms", {"Authorization": f"Basic {login}"})
    with urlopen(query) as answer:
        return json.load(answer)["data"]


Family = Callable[[argparse.Namespace, str], Any]
FAMILIES: tuple[Family, ...] = (flight_sql, postgresql, rest, websocket, line_protocol)


def answers(to: argparse.Namespace) -> Iterator[str]:
    """Yields what each family found."""
    for number, ask in enumerate(FAMILIES):
        yield f"{ask.__name__}: {ask(to, _insert(number, ask.__name__))}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for word in ("--flight", "--postgres", "--taos"):
        parser.add_argument(word, type=int, required=True)
    for word in ("--user", "--password"):
        parser.add_argument(word, required=True)
    for line in answers(parser.parse_args()):
        print(line, flush=True)
