"""Ten million open (account, window) pairs in an engine with Spark: `python -m bench.open_pairs [--buffer 128MiB]`.

Each account has `--windows` windows that are open at the same time, each with an average, a greatest value and a count.
A paused stream goes on with a row of each pair, in an order that knows no neighbours, and takes a checkpoint. Then rows
of half of the pairs come, in the middle of which its worker is killed (-9), and at last one row that closes all. The
results must equal DuckDB's over the same rows.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psutil
import pyarrow as pa

from bench.answers import WrongAnswerError
from bench.isolated import Phase, measured
from bench.node import Node
from bench.processes import MemoryWatch, ask, cpu_seconds, tree
from bench.setup import DATABASE

_FIRST_MS, _WIDTH_MS, _DAY_MS = 1_700_000_000_000, 1_000_000, 86_400_000
_TABLES_PER_WINDOW = 10  # each has its rows in the order of their times
_STRIDE = 387_420_489
_BLOCK = 20_000
_PATIENCE_S = 900.0
_SCHEMA = pa.schema([("tbname", pa.string()), ("ts", pa.timestamp("ms")), ("account", pa.int32()),
                     ("amount", pa.float64())])


def pairs(
    folder: Path, phase: Phase, accounts: int, windows: int, vgroups: int, buffer: str,
) -> dict[str, Any]:
    """Returns what the pairs cost. Raises WrongAnswerError."""
    blocks = list(range(0, accounts * windows * 3 // 2, _BLOCK))
    whole = accounts * windows // _BLOCK
    config = {"streamBufferSize": buffer, "idleTimeout": "1h", "checkpointInterval": "1h"}
    with MemoryWatch(os.getpid()) as memory, Node(folder / "data", config) as node:
        _create(node, windows, vgroups)
        node.execute("PAUSE STREAM s")
        _feed(node, blocks[:whole], accounts, windows)
        node.engine.flush()
        pa.default_memory_pool().release_unused()
        phase.begin()
        idle = _held()
        memory.restart()
        ends, (started, cpu) = node.log_ends(), _now()
        node.execute("RESUME STREAM s")
        node.wait_done(ends, _PATIENCE_S)
        caught_up = _since(started, cpu)
        filled, peak = _held(), memory.peak.pss
        first = _checkpoint(node)
        middle = (whole + len(blocks)) // 2
        _feed(node, blocks[whole:middle], accounts, windows)
        worker = node.status().workers[0].pid
        assert worker is not None
        killed = time.monotonic()
        os.kill(worker, signal.SIGKILL)
        node.wait_until(lambda: worker not in {other.pid for other in node.status().workers} and node.all_run()
                        and all(task.state != "STARTING" for task in node.tasks()), _PATIENCE_S)
        back = round(time.monotonic() - killed, 2)
        _feed(node, blocks[middle:], accounts, windows)
        node.wait_done(node.log_ends(), _PATIENCE_S)
        last = _checkpoint(node)
        memory.restart()
        started, cpu = _now()
        _close(node, windows)
        node.wait_until(lambda: node.results.rows >= accounts * windows, _PATIENCE_S)
        node.wait_done(node.log_ends(), _PATIENCE_S)
        closed = _since(started, cpu)
        phase.end()
        closing_peak = memory.peak.pss
        _check(node, blocks, accounts, windows)
    return {"pairs": accounts * windows, "vgroups": vgroups, "buffer": buffer, "caught_up": caught_up,
            "rows_per_cpu_second": round(whole * _BLOCK / caught_up[0]), "mib_idle": idle, "mib_open": filled,
            "pss_mib_peak": peak, "checkpoint": first, "worker_back_s": back, "checkpoint_after": last,
            "all_closed": closed, "pss_mib_closing": closing_peak, "answer": "equal"}


def _create(node: Node, windows: int, vgroups: int) -> None:
    node.execute(f"CREATE DATABASE {DATABASE} VGROUPS {vgroups} KEEP 36500d")
    node.execute(f"USE {DATABASE}")
    node.execute("CREATE STABLE moves (ts TIMESTAMP, account INT, amount DOUBLE) TAGS (w INT)")
    node.execute("CREATE TABLE " + " ".join(
        f"t{table} USING moves TAGS ({table})" for table in range(windows * _TABLES_PER_WINDOW)))
    node.execute("CREATE STREAM s TRIGGER WINDOW_CLOSE WATERMARK 1d IGNORE EXPIRED 0 IGNORE UPDATE 0 INTO out "
                 "TAGS (k INT) AS SELECT _wstart ts, avg(amount) a, max(amount) m, count(*) c FROM moves "
                 "PARTITION BY account k INTERVAL(1000s)")
    node.wait_running()


def _block(first: int, accounts: int, windows: int) -> pa.RecordBatch:
    """Returns rows: the first `accounts * windows` of them are one of each pair."""
    rows = np.arange(first, first + _BLOCK)
    window, number = rows % windows, rows // windows
    stride = _STRIDE + 2 * (first // (accounts * windows))
    while math.gcd(stride, accounts) > 1:
        stride += 1
    account = (number % accounts * stride + window * 7919) % accounts
    table = window * _TABLES_PER_WINDOW + number % _TABLES_PER_WINDOW
    names = pa.DictionaryArray.from_arrays(
        pa.array(table.astype(np.int32)), [f"t{each}" for each in range(windows * _TABLES_PER_WINDOW)])
    times = _FIRST_MS // _WIDTH_MS * _WIDTH_MS + window * _WIDTH_MS + number // _TABLES_PER_WINDOW
    return pa.RecordBatch.from_arrays(
        [names.cast(pa.string()), pa.array(times).cast(pa.timestamp("ms")), pa.array(account.astype(np.int32)),
         pa.array(rows % 1013 * 0.25)], schema=_SCHEMA)


def _feed(node: Node, firsts: Sequence[int], accounts: int, windows: int) -> None:
    for first in firsts:
        node.insert(f"{DATABASE}.moves", _block(first, accounts, windows))


def _close(node: Node, windows: int) -> None:
    """Writes a row of two days later to each child table, so that no vnode is left behind."""
    node.execute("INSERT INTO " + " ".join(f"t{table} VALUES ({_FIRST_MS + 2 * _DAY_MS}, -1, 0)"
                                           for table in range(windows * _TABLES_PER_WINDOW)))


def _check(node: Node, firsts: Sequence[int], accounts: int, windows: int) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        for first in firsts:
            yield _block(first, accounts, windows)

    found = node.execute("SELECT ts, k, a, m, c FROM out").table
    with duckdb.connect() as connection:
        connection.register("found", found)
        connection.register("source", pa.RecordBatchReader.from_batches(_SCHEMA, rows()))
        ((wrong,),) = connection.execute(
            f"SELECT count(*) FROM (SELECT account k, epoch_ms(ts) // {_WIDTH_MS} * {_WIDTH_MS} ts, avg(amount) a, "
            "max(amount) m, count(*) c FROM source GROUP BY 1, 2) w FULL JOIN (SELECT * REPLACE (epoch_ms(ts) AS ts) "
            "FROM found) f USING (k, ts) WHERE (abs(f.a - w.a) < 1e-6 AND f.m = w.m AND f.c = w.c) IS NOT TRUE"
        ).fetchall()
    if wrong or found is None or found.num_rows != accounts * windows:
        raise WrongAnswerError(f"{wrong} of {accounts * windows} pairs differ")


def _checkpoint(node: Node) -> tuple[float, float]:
    started, cpu = _now()
    node.execute("CHECKPOINT STREAM s")
    return _since(started, cpu)


def _now() -> tuple[float, float]:
    return time.monotonic(), cpu_seconds()


def _since(started: float, cpu: float) -> tuple[float, float]:
    """Returns the seconds of processors, and by the clock."""
    return round(cpu_seconds() - cpu, 2), round(time.monotonic() - started, 2)


def _held() -> dict[str, int]:
    """Returns MiB of all processes: mapped files, which are the system's to take away, included (`pss`), and not."""
    processes = tree(psutil.Process())
    pss = sum(each.pss for process in processes if (each := ask(process.memory_full_info)) is not None)
    return {"pss": pss >> 20, "anonymous": sum(ask(lambda p=process: _anonymous(p.pid)) or 0 for process in processes)}


def _anonymous(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
    return int(rollup.split("Pss_Anon:")[1].split()[0]) >> 10


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench.open_pairs", description=__doc__)
    parser.add_argument("--accounts", type=int, default=1_000_000, help="a multiple of 20,000 is meant")
    parser.add_argument("--windows", type=int, default=10, help="open windows of each account")
    parser.add_argument("--vgroups", type=int, default=1)
    parser.add_argument("--buffer", default="4GiB", help="streamBufferSize")
    parser.add_argument("--directory", type=Path, help="where data goes")
    options = parser.parse_args(arguments)
    print(json.dumps(measured(pairs, options.directory, accounts=options.accounts, windows=options.windows,
                              vgroups=options.vgroups, buffer=options.buffer)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
