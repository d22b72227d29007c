"""Messages of a broker, joined and put into windows, end up in PostgreSQL, while worker and engine are killed.

`python -m bench.external --broker kafka --messages 1000000`: meters and weather stations send messages; two ingests
put them into super tables; a stream joins the rows of each site, and upserts a result per site and ten seconds. A
worker is killed (SIGKILL) when 30 % of the messages are sent, the engine at 60 %. Afterwards single windows are sent,
and the time until PostgreSQL has their results is taken. In the end its table must be the answer of DuckDB over all
messages, and the super tables must have each message's row once. It prints a JSON line.
A run that isn't through in time says what the engine says of itself, and ends with 1, as one with a wrong answer
does. Brokers and PostgreSQL are processes of this machine; the Kafka brokers are those that librdkafka simulates.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import duckdb
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from kits.basics.external_servers import Kafka, Mosquitto, Postgres  # noqa: E402
from kits.engines.engine_process import workers_below  # noqa: E402
from kits.engines.serve_kit import Served  # noqa: E402

import penstock  # noqa: E402
from bench.figures import percentiles  # noqa: E402
from penstock import __version__  # noqa: E402
from penstock.common.errors import PenstockError  # noqa: E402

METERS, SITES = 100, 10
PER_SECOND = METERS + SITES
WINDOW_S = 10
CLOSING_S = 3
"""So many seconds of messages behind a window close it: two of the watermark, one in which rows find partners."""
BEGIN_MS = 1_700_000_000_000
_STORY_S, _LAST_ROWS_S = 60, 30.0
_PARTITIONS = 16

TABLES = (
    "CREATE DATABASE plant VGROUPS 2",
    "CREATE STABLE plant.meters (ts TIMESTAMP, power BIGINT) TAGS (site INT)",
    "CREATE STABLE plant.weather (ts TIMESTAMP, celsius BIGINT) TAGS (site INT)",
)
INGESTS = (
    "CREATE INGEST meters FROM CONNECTION broker (TOPIC 'meters', FORMAT JSON{more}) "
    "INTO plant.meters (power = $.power) TAGS (site = $.site) TBNAME ($.name) TS FROM $.ts ON_ERROR FAIL",
    "CREATE INGEST weather FROM CONNECTION broker (TOPIC 'weather', FORMAT JSON{more}) "
    "INTO plant.weather (celsius = $.celsius) TAGS (site = $.site) TBNAME ($.name) TS FROM $.ts ON_ERROR FAIL",
)
STREAM = (
    "CREATE STREAM hot TRIGGER WINDOW_CLOSE WATERMARK 2s IGNORE EXPIRED 0 IGNORE UPDATE 0 "
    "INTO CONNECTION store (TABLE 'hot') AS "
    "SELECT _wstart, count(*) AS n, sum(m.power * w.celsius) AS heat, max(m.power) AS peak "
    "FROM plant.meters m JOIN plant.weather w ON m.site = w.site AND m.ts BETWEEN w.ts AND w.ts + 999a "
    f"PARTITION BY m.site AS site INTERVAL({WINDOW_S}s)"
)
ANSWER = (
    f"SELECT second // {WINDOW_S} AS piece, number % {SITES} AS site, count(*) AS n, "
    "sum((second * 7 + number) % 1000 * ((second + number % 10) % 40))::BIGINT AS heat, "
    "max((second * 7 + number) % 1000) AS peak "
    f"FROM range(?) AS seconds(second), range({METERS}) AS meters(number) GROUP BY ALL"
)
ROWS = {
    "SELECT count(*), sum(power) FROM plant.meters":
        "SELECT count(*), sum((second * 7 + number) % 1000)::BIGINT "
        f"FROM range(?) s(second), range({METERS}) m(number)",
    "SELECT count(*), sum(celsius) FROM plant.weather":
        f"SELECT count(*), sum((second + site) % 40)::BIGINT FROM range(?) s(second), range({SITES}) w(site)",
}
"""What the super tables say of their rows, and how DuckDB gets it from the messages."""
FOUND = (f"SELECT ((extract(epoch FROM _wstart) * 1000)::bigint - {BEGIN_MS}) / {WINDOW_S * 1000}, site, n, heat, peak "
         "FROM hot")


class Sender(Protocol):
    """Sends messages to a broker; `flush` returns when it has all of them."""

    def send(self, topic: str, key: str, text: str) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class KafkaSender:
    """Sends with a key, compressed: simulated brokers keep no more than 5 MiB of a partition."""

    def __init__(self, servers: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({
            "bootstrap.servers": servers, "compression.type": "zstd", "linger.ms": 5, "enable.idempotence": True,
            "queue.buffering.max.messages": 100_000, "batch.size": 500_000})

    def send(self, topic: str, key: str, text: str) -> None:
        while True:
            try:
                self._producer.produce(topic, text, key)
                return
            except BufferError:
                self._producer.poll(0.01)

    def flush(self) -> None:
        self._producer.flush()

    def close(self) -> None:
        """Drops what isn't sent; said before the brokers go, or it complains of them."""
        self._producer.purge()
        self._producer.close()


class MqttSender:
    """Sends with QoS 1."""

    def __init__(self, port: int, username: str, password: str) -> None:
        from paho.mqtt import client as mqtt

        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.username_pw_set(username, password)
        self._room = threading.BoundedSemaphore(_UNDER_WAY)
        self._client.on_publish = lambda *_: self._room.release()
        self._client.max_inflight_messages_set(_UNDER_WAY)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def send(self, topic: str, key: str, text: str) -> None:
        self._room.acquire()
        self._client.publish(topic, text, qos=1)

    def flush(self) -> None:
        for _ in range(_UNDER_WAY):
            self._room.acquire()
        for _ in range(_UNDER_WAY):
            self._room.release()

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


_UNDER_WAY = 200
"""Messages of MQTT; the library looks through all of them for each answer of the broker."""


def messages(second: int) -> Iterator[tuple[str, str, str]]:
    """Yields (topic, key, message) of all meters and stations at a second."""
    ts = BEGIN_MS + second * 1000
    for site in range(SITES):
        name = f"w{site}"
        celsius = (second + site) % 40
        yield "weather", name, f'{{"name": "{name}", "site": {site}, "ts": {ts}, "celsius": {celsius}}}'
    for number in range(METERS):
        name = f"m{number}"
        power = (second * 7 + number) % 1000
        text = {"name": name, "site": number % SITES, "ts": ts + number, "power": power}
        yield "meters", name, json.dumps(text)


class Plant(Protocol):
    """The engine that gets the messages."""

    def execute(self, *statements: str) -> None: ...

    def rows(self, statement: str) -> list[tuple[Any, ...]]: ...

    def wait(self, seconds: float) -> None:
        """Lets time pass."""
        ...

    def kill_worker(self) -> None: ...

    def kill_engine(self) -> None: ...


class ServedPlant:
    """An engine in a process of its own, with Spark."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._pause = threading.Event()
        self.served = self._start()

    def _start(self) -> Served:
        settings = {"checkpointInterval": "5s", "spark.master": "local[16]", "streamSinkDataRate": 0,
                    "sinkCallsPerSecond": 1000, "memtableSize": "64MiB", "walSegmentSize": "64MiB"}
        return Served(self._folder / "data", settings, **self._environment)

    def execute(self, *statements: str) -> None:
        with self._connect() as connection:
            for statement in statements:
                connection.cursor().execute(statement)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self._connect() as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()]

    def wait(self, seconds: float) -> None:
        self._pause.wait(seconds)

    def kill_worker(self) -> None:
        """Kills a Python worker of Spark that has worked the most."""
        max(workers_below(self.served.process.pid), key=lambda process: sum(process.cpu_times()[:2])).kill()

    def kill_engine(self) -> None:
        """Kills the engine, and starts it again."""
        self.served.end(signal.SIGKILL)
        self.served = self._start()

    def end(self) -> None:
        self.served.end()

    def _connect(self) -> Any:
        return penstock.connect(host="127.0.0.1", port=self.served.port)


class NotInTimeError(Exception):
    """The run took longer than it may."""


def _give_up(*_: object) -> None:
    raise NotInTimeError


def main() -> int:
    """Runs what the command line asks for; returns 1 if the answer is wrong or doesn't come."""
    parser = argparse.ArgumentParser(prog="python -m bench.external", description=__doc__)
    parser.add_argument("--broker", choices=("kafka", "mqtt"), default="kafka")
    parser.add_argument("--messages", type=int, default=1_000_000, help="before the single windows (default 1,000,000)")
    parser.add_argument("--windows", type=int, default=30, help="that are sent one by one (default 30)")
    parser.add_argument("--no-kills", action="store_true", help="kill nothing")
    parser.add_argument("--timeout", type=int, default=1800, metavar="SECONDS", help="for all of it (default 1800)")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(options.timeout)
    try:
        with ExitStack() as stack:
            run = _prepared(options, stack)
            try:
                return run.run()
            except NotInTimeError:
                signal.alarm(_STORY_S)
                print(run.story(), file=sys.stderr, flush=True)
                raise
            finally:
                signal.alarm(0)
    except NotInTimeError:
        print(json.dumps({"measure": "external", "failed": f"not through within {options.timeout} seconds"}))
        return 1
    finally:
        signal.alarm(0)


def _prepared(options: argparse.Namespace, stack: ExitStack) -> Run:
    """Starts PostgreSQL, the broker and the engine; `stack` ends them all."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-external-")))
    store = Postgres()
    stack.callback(store.remove)
    store.start()
    broker: Kafka | Mosquitto
    if options.broker == "kafka":
        broker = Kafka()
        stack.callback(broker.close)
    else:
        # It keeps whatever waits for an engine that is away, and writes no line per message.
        broker = Mosquitto(folder, "max_queued_messages 0", "max_inflight_messages 1000", "log_type none")
        broker.start()
        stack.callback(broker.stop)
    plant = ServedPlant(folder, passwords(store, broker))
    stack.callback(plant.end)
    return Run(plant, store, broker, stack, options)


def passwords(store: Postgres, broker: Kafka | Mosquitto) -> dict[str, str]:
    """Returns the environment that the engine needs."""
    found = {"STORE": store.password}
    return found | {"BROKER": broker.password} if isinstance(broker, Mosquitto) else found


class Run:
    """One run: all messages, the kills, then single windows."""

    def __init__(
        self, plant: Plant, store: Postgres, broker: Kafka | Mosquitto, stack: ExitStack, options: argparse.Namespace
    ) -> None:
        """Creates what the run needs in the engine and the broker."""
        self._plant = plant
        self._options = options
        self._sent = 0  # seconds
        more = ""
        if isinstance(broker, Kafka):
            for topic in ("meters", "weather"):
                broker.create_topic(topic, _PARTITIONS)
            self._sender: Sender = KafkaSender(broker.servers)
            connection = f"CREATE CONNECTION broker TYPE kafka WITH (servers='{broker.servers}')"
        else:
            more = ", QOS 1"
            self._sender = MqttSender(broker.port, broker.username, broker.password)
            connection = (f"CREATE CONNECTION broker TYPE mqtt WITH (url='{broker.url}', "
                          f"username='{broker.username}', password='env:BROKER')")
        stack.callback(self._sender.close)
        self._connect_store = store.connect
        self._store = stack.enter_context(store.connect())
        plant.execute(
            *TABLES, connection,
            f"CREATE CONNECTION store TYPE postgres WITH (host='127.0.0.1', port='{store.port}', "
            f"database='{store.database}', username='{store.username}', password='env:STORE')",
            STREAM, *(text.format(more=more) for text in INGESTS))

    def run(self) -> int:
        options = self._options
        seconds = options.messages // PER_SECOND // WINDOW_S * WINDOW_S
        self._await(self._runs, 0.2)
        load = os.getloadavg()[0]
        started = time.monotonic()
        for share, act in self._acts():
            self._send(int(seconds * share))
            act()
        sent_s = time.monotonic() - started
        self._send(seconds + CLOSING_S)
        self._await(lambda: self._results() >= seconds // WINDOW_S * SITES)
        done_s = time.monotonic() - started
        delays = [self._delay_ms() for _ in range(options.windows)]
        lost = self.lost_rows(_LAST_ROWS_S)
        results, wrong = self.wrong_results()
        print(json.dumps({
            "measure": "external", "version": __version__, "broker": options.broker, "messages": seconds * PER_SECOND,
            "kills": [] if options.no_kills else ["worker", "engine"], "results": results, "wrong": wrong,
            "sent_seconds": round(sent_s, 1), "seconds": round(done_s, 1),
            "messages_per_second": round(seconds * PER_SECOND / done_s), "load": round(load, 1),
            **({"latency_ms": percentiles(np.array(delays))} if delays else {}),
            **({"failed": "the answer is wrong"} if lost or wrong else {})}), flush=True)
        return 1 if lost or wrong else 0

    def _delay_ms(self) -> float:
        """Sends one more window; returns how long its results take once what closes it is being sent."""
        self._send(self._sent + WINDOW_S - 1)
        moment = time.monotonic()
        self._send(self._sent + 1)
        self._await(lambda: self._results() >= self._closed() * SITES)
        return (time.monotonic() - moment) * 1000

    def _closed(self) -> int:
        return (self._sent - CLOSING_S) // WINDOW_S

    def _acts(self) -> list[tuple[float, Callable[[], object]]]:
        nothing = (1.0, lambda: None)
        if self._options.no_kills:
            return [nothing]

        def kill_worker() -> None:
            self._plant.kill_worker()
            print("a worker was killed", file=sys.stderr, flush=True)

        def kill_engine() -> None:
            started = time.monotonic()
            self._plant.kill_engine()
            print(f"the engine was killed, and serves again after {time.monotonic() - started:.1f} s", file=sys.stderr,
                  flush=True)

        return [(0.3, kill_worker), (0.6, kill_engine), nothing]

    def _send(self, until: int) -> None:
        """Sends the messages up to a second, and returns when the broker has them."""
        while self._sent < until:
            for topic, key, text in messages(self._sent):
                self._sender.send(topic, key, text)
            self._sent += 1
        self._sender.flush()

    def _runs(self) -> bool:
        """Whether the stream and both ingests run."""
        return [row for table in ("ins_streams", "ins_ingests")
                for row in self._plant.rows(f"SELECT state FROM information_schema.{table}")] == [("RUNNING",)] * 3

    def _has_table(self) -> bool:
        found = self._store.execute("SELECT to_regclass('hot')").fetchone()
        return bool(found and found[0])

    def _results(self) -> int:
        """Returns how many results are there; the first one makes the table."""
        if not self._has_table():
            return 0
        found = self._store.execute("SELECT count(*) FROM hot").fetchone()
        return int(found[0]) if found else 0

    def _await(self, condition: Callable[[], bool], pause_s: float = 0.002, patience_s: float = math.inf) -> bool:
        """Waits until a condition holds, or until it is in vain; returns whether it does."""
        deadline = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            self._plant.wait(pause_s)
        return True

    def story(self) -> str:
        """What the engine says of itself."""
        self._store = self._connect_store()  # the other one may be in the midst of a statement
        lines = [f"{self._sent * PER_SECOND:,} messages sent, {self._results():,} results in PostgreSQL"]
        for statement in ("SHOW STREAMS", "SHOW INGESTS", "SHOW CONNECTIONS", *ROWS):
            try:
                lines.append(f"{statement}: {self._plant.rows(statement)}")
            except PenstockError as error:
                lines.append(f"{statement}: {error}")
        return "\n".join(lines)

    def lost_rows(self, patience_s: float) -> bool:
        """Says which super table doesn't have the row of each message, once; those sent last may be under way."""
        lost = False
        for statement, answer in ROWS.items():
            wanted = duckdb.execute(answer, [self._sent]).fetchall()
            there = partial(self._says, statement, wanted)
            if not self._await(there, 0.2, patience_s):
                print(f"{statement}: {self._plant.rows(statement)} instead of {wanted}", file=sys.stderr)
                lost = True
        return lost

    def _says(self, statement: str, wanted: list[tuple[Any, ...]]) -> bool:
        return self._plant.rows(statement) == wanted

    def wrong_results(self) -> tuple[int, int]:
        """Compares the windows that are closed with DuckDB's; returns how many results there are, and differ."""
        closed = self._closed()
        answer = {row[:2]: row[2:] for row in duckdb.execute(ANSWER, [closed * WINDOW_S]).fetchall()}
        found = {(int(row[0]), int(row[1])): tuple(map(int, row[2:])) for row in self._store.execute(FOUND).fetchall()}
        found = {key: row for key, row in found.items() if key[0] < closed}
        wrong = [key for key in answer.keys() | found.keys() if answer.get(key) != found.get(key)]
        for key in sorted(wrong)[:10]:
            print(f"window {key[0]} of site {key[1]}: {found.get(key)} instead of {answer.get(key)}", file=sys.stderr)
        return len(answer), len(wrong)


if __name__ == "__main__":
    sys.exit(main())
