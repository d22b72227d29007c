"""Transfers between accounts, read all the time: `python -m bench.transfers --reads 100000 --rate 10000 --kills 1`.

Money moves at a rate of rows per second, 100 by one INSERT over several tables and vnodes. Streams keep the debits and
the credits of each account, a third one joins them to balances, a fourth one sums these. Their results are read again
and again, by three queries in turn; each sum must be zero, whenever it is asked, also before and after the engine is
killed (SIGKILL), which happens in between. Prints how often was read, how long that took, and how old results were.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import penstock

ROOT = Path(__file__).resolve().parent.parent
T0 = 1_700_000_000_000
_ACCOUNTS, _BRANCHES, _AT_ONCE = 1_000, 8, 100
_SETTINGS: dict[str, Any] = {"timezone": "UTC", "spark.ui.enabled": False, "restartDelayMax": "1s"}
_MADE = [
    "CREATE DATABASE bank VGROUPS 2 KEEP 36500", "USE bank", "CREATE TABLE accounts (id INT PRIMARY KEY)",
    "CREATE STABLE transfers (ts TIMESTAMP, payer INT, payee INT, amount BIGINT) TAGS (branch INT)",
    *(f"CREATE TABLE b{n} USING transfers TAGS ({n})" for n in range(_BRANCHES)),
    f"INSERT INTO accounts VALUES {' '.join(f'({n})' for n in range(_ACCOUNTS))}",
    "CREATE MATERIALIZED VIEW debits AS SELECT payer id, sum(amount) total, count(*) n FROM transfers GROUP BY payer",
    "CREATE MATERIALIZED VIEW credits AS SELECT payee id, sum(amount) total FROM transfers GROUP BY payee",
    "CREATE MATERIALIZED VIEW balances (id PRIMARY KEY, balance) AS SELECT a.id, coalesce(c.total, 0) - "
    "coalesce(d.total, 0) FROM accounts a LEFT JOIN debits d ON a.id = d.id LEFT JOIN credits c ON a.id = c.id",
    "CREATE MATERIALIZED VIEW overall AS SELECT count(*) accounts, sum(balance) total FROM balances"]
_READ = {
    "total of two streams": "SELECT sum(c.total) - sum(d.total) FROM credits c FULL JOIN debits d ON c.id = d.id",
    "total of balances": "SELECT sum(balance) FROM balances",
    "stream of the total": "SELECT sum(total) FROM overall"}


class _Bank:
    """Moves money at a rate, from a row on, in a thread of its own."""

    def __init__(self, cursor: Any, first: int, rate: float) -> None:
        self._cursor, self._rate = cursor, rate
        self.first = self.row = first
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.begun = time.monotonic()
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            behind = self.begun + (self.row - self.first) / self._rate - time.monotonic()
            if behind > 0:
                self._stopped.wait(behind)
            rows: dict[int, list[str]] = {}
            for number in range(self.row, self.row + _AT_ONCE):
                payer, payee = number * 7919 % _ACCOUNTS, (number * 104_729 + 1) % _ACCOUNTS
                rows.setdefault(number % _BRANCHES, []).append(f"({T0 + number}, {payer}, {payee}, {number % 997})")
            self._cursor.execute("INSERT INTO " + " ".join(
                f"bank.b{branch} VALUES {' '.join(values)}" for branch, values in rows.items()))
            self.row += _AT_ONCE

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def _engine(path: str, reads: int, rate: float) -> None:
    """Moves money and reads, and tells of it: a line for each thousand reads, and the last one at the end."""
    with penstock.connect(path, _SETTINGS) as connection:
        cursor = connection.cursor()

        def ask(query: str) -> Any:
            cursor.execute(query)
            rows = cursor.fetchall()
            return rows[0][0] if rows else None

        if ask("SELECT count(*) FROM information_schema.ins_databases WHERE name = 'bank'") == 0:
            for statement in _MADE:
                cursor.execute(statement)
        cursor.execute("USE bank")
        bank = _Bank(connection.cursor(), int(ask("SELECT count(*) FROM transfers") or 0) // _AT_ONCE * _AT_ONCE, rate)
        queries, times, seen = list(_READ.values()), [], 0
        wrong, newest, rounds, lags = 0, -1, 0, []
        for number in range(reads):
            begun = time.perf_counter()
            value = ask(queries[number % len(queries)])
            times.append(time.perf_counter() - begun)
            wrong += value not in (0, None)
            seen += value is not None
            if number % 100 == 99:
                written, has = bank.row, int(ask("SELECT sum(n) FROM debits") or 0)
                lags.append((written - has) / rate)
                rounds, newest = rounds + (has != newest), has
            if number % 1000 == 999 or number == reads - 1:
                took = time.monotonic() - bank.begun
                print(json.dumps({
                    "reads": number + 1, "with_rows": seen, "wrong": wrong, "states_seen": rounds,
                    "transfers": bank.row - bank.first, "per_s": round((bank.row - bank.first) / took),
                    "read_ms": round(1000 * statistics.median(times), 2),
                    "read_ms_p99": round(1000 * sorted(times)[len(times) * 99 // 100], 2),
                    "behind_s": round(statistics.median(lags), 2) if lags else None}), flush=True)
        bank.stop()


def _play(path: str, reads: int, rate: float, *, kill_at: int | None) -> dict[str, Any]:
    """Has an engine read so often, or until it is killed; returns what it has told last."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.transfers", "--engine", path, "--reads", str(reads), "--rate", str(rate)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert child.stdout is not None
    told: dict[str, Any] = {"reads": 0, "wrong": 0, "transfers": 0}
    for line in child.stdout:
        if not line.startswith("{"):
            continue
        told = json.loads(line)
        print(line, end="", file=sys.stderr, flush=True)
        if kill_at is not None and told["reads"] >= kill_at:
            child.kill()
    code = child.wait()
    if code != (0 if kill_at is None else -9):
        raise SystemExit(f"the engine ended with {code}")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reads", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=10_000)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        _engine(arguments.engine, arguments.reads, arguments.rate)
        return
    with tempfile.TemporaryDirectory(prefix="transfers-") as path:
        done, wrong = 0, 0
        for left in range(arguments.kills, -1, -1):
            reads = arguments.reads - done
            told = _play(path, reads, arguments.rate, kill_at=reads // (left + 1) if left else None)
            done, wrong = done + told["reads"], wrong + told["wrong"]
            print(json.dumps({**told, "killed": bool(left)}), flush=True)
        print(json.dumps({"reads": done, "other_than_zero": wrong}))
    if wrong:
        raise SystemExit("a state was seen that never was")


if __name__ == "__main__":
    main()
