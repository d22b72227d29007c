"""Stock clients that write: each line of JSON names one and says what to write; what went wrong is the answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

HERE = "127.0.0.1"


def influx_1(port: int, database: str, user: str, password: str, precision: str, lines: list[str]) -> None:
    """The client of InfluxDB 1, which also asks whether anybody is there and creates its database."""
    from influxdb import InfluxDBClient

    client = InfluxDBClient(HERE, port, user, password, database)
    assert client.ping()
    client.create_database(database)
    client.write_points(lines, time_precision=precision, protocol="line")
    client.close()


def influx_2(port: int, database: str, user: str, password: str, precision: str, lines: list[str]) -> None:
    """The client of InfluxDB 2."""
    from influxdb_client import InfluxDBClient
    from influxdb_client.client.write_api import SYNCHRONOUS

    with InfluxDBClient(f"http://{HERE}:{port}", token=f"{user}:{password}", org="any", enable_gzip=True) as client:
        assert client.ping()
        assert client.health().status == "pass"
        client.write_api(write_options=SYNCHRONOUS).write(database, record=lines, write_precision=precision)


def influx_3(port: int, database: str, user: str, password: str, precision: str, lines: list[str]) -> None:
    """The client of InfluxDB 3."""
    from influxdb_client_3 import SYNCHRONOUS, InfluxDBClient3, write_client_options

    with InfluxDBClient3(host=f"http://{HERE}:{port}", token=f"{user}:{password}", database=database,
                         write_client_options=write_client_options(write_options=SYNCHRONOUS)) as client:
        client.write(lines, write_precision=precision)


def opentsdb(port: int, database: str, user: str, password: str, precision: str, lines: list[str]) -> None:
    """A client of OpenTSDB over HTTP, whose path for points can be set."""
    from opentsdb.protocols.http_connect import HttpTSDBConnect

    connection = HttpTSDBConnect(HERE, port, False, "gzip", "/-/ping", f"/opentsdb/v1/put/json/{database}?details=true",
                                 f"http://{user}:{password}@{HERE}:{port}")
    answer = connection.sendall(*map(json.loads, lines))
    if answer.get("failed") != 0:
        raise RuntimeError(json.dumps(answer))


CLIENTS: dict[str, Callable[[int, str, str, str, str, list[str]], None]] = {
    "influxdb": influx_1, "influxdb-client": influx_2, "influxdb3-python": influx_3, "opentsdb-client": opentsdb}

if __name__ == "__main__":
    for question in sys.stdin:
        name, *arguments = json.loads(question)
        try:
            CLIENTS[name](*arguments)
        except Exception as error:  # noqa: BLE001 - whatever a client raises is what its users see
            print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
        else:
            print(json.dumps(""), flush=True)
