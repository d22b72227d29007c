"""Transfers between accounts: whenever somebody looks, the balances sum to zero, also after the engine was killed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import times
from kits.basics.waiting import wait_until
from kits.engines.threaded import Threaded

T0 = 1_700_000_000_000
ACCOUNTS, BRANCHES, AT_ONCE = 50, 4, 100
READS, ROUNDS = times(80, 1_500), times(3, 8)
MADE = ["CREATE DATABASE bank VGROUPS 3 KEEP 36500", "USE bank",
        "CREATE TABLE accounts (id INT PRIMARY KEY, owner VARCHAR(20))",
        "CREATE STABLE transfers (ts TIMESTAMP, payer INT, payee INT, amount BIGINT) TAGS (branch INT)",
        *(f"CREATE TABLE b{n} USING transfers TAGS ({n})" for n in range(BRANCHES)),
        "INSERT INTO accounts VALUES " + " ".join(f"({n}, 'owner {n}')" for n in range(ACCOUNTS)),
        "CREATE MATERIALIZED VIEW debits AS SELECT payer id, sum(amount) total FROM transfers GROUP BY payer",
        "CREATE MATERIALIZED VIEW credits AS SELECT payee id, sum(amount) total FROM transfers GROUP BY payee",
        "CREATE MATERIALIZED VIEW balances AS SELECT a.id, max(a.owner) owner, coalesce(sum(c.total), 0) - "
        "coalesce(sum(d.total), 0) balance FROM accounts a LEFT JOIN debits d ON a.id = d.id LEFT JOIN credits c "
        "ON a.id = c.id GROUP BY a.id",
        "CREATE MATERIALIZED VIEW overall AS SELECT count(*) accounts, sum(balance) total FROM balances"]
READ = ["SELECT coalesce(sum(c.total), 0) - coalesce(sum(d.total), 0) FROM credits c FULL JOIN debits d ON c.id = d.id",
        "SELECT coalesce(sum(balance), 0) FROM balances", "SELECT coalesce(sum(total), 0) FROM overall"]


class Bank:
    """Moves money in one thread, as many rows at once as fit into a statement, until it is stopped."""

    def __init__(self, engine: Threaded) -> None:
        self._engine = engine
        self._number = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.paid = 0
        self.problem: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self.pay()
        except Exception as error:  # noqa: BLE001  is told by `stop`
            self.problem = error

    def pay(self) -> None:
        """Rows of each branch, in several vnodes, by one statement; some of them are written a second time."""
        parts = []
        for branch in range(BRANCHES):
            rows = []
            for place in range(AT_ONCE // BRANCHES):
                number = self._number + place
                payer, payee = number * 7 % ACCOUNTS, (number * 11 + branch + 1) % ACCOUNTS
                rows.append(f"({T0 + number - 3 * (number % 2)}, {payer}, {payee}, {number % 100})")
            parts.append(f"b{branch} VALUES {' '.join(rows)}")
        self._engine.engine.execute(f"INSERT INTO {' '.join(parts)}", self._engine.session)
        self._number += AT_ONCE // BRANCHES
        self.paid += AT_ONCE

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        assert self.problem is None


@pytest.mark.long
def test_balances_sum_to_zero_at_all_times(tmp_path: Path) -> None:
    """Read in turn from the results of two streams, of one over both, and of one over that, while money moves."""
    engine = Threaded(tmp_path)
    engine.run(*MADE)
    bank = Bank(engine)
    seen: set[tuple[Any, ...]] = set()
    reads = 0

    def read() -> None:
        nonlocal reads
        # A table without rows has no sums.
        assert engine.run(READ[reads % len(READ)]) in ([], [(0,)])
        reads += 1
        if not reads % 20:
            seen.update(engine.run("SELECT sum(total) FROM debits"))

    bank.start()
    try:
        while reads < READS or len(seen) < ROUNDS:
            read()
    finally:
        bank.stop()
    moved = "SELECT sum(amount) FROM transfers"
    wait_until(lambda: engine.run("SELECT sum(total) FROM debits") == engine.run(moved), 120)
    assert engine.run("SELECT accounts, total FROM overall") == [(ACCOUNTS, 0)]
    assert engine.run("SELECT sum(abs(balance)) > 0 FROM balances") == [(True,)]
    bank.pay()
    engine.reopen()
    engine.run("USE bank")
    for _ in range(50):
        read()
    wait_until(lambda: read() or engine.run("SELECT sum(total) FROM debits") == engine.run(moved), 120)
    engine.engine.close()
