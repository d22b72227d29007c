"""Constants are computed while planning, without getting into the way of processes that are started meanwhile."""

from __future__ import annotations

import subprocess
import threading

from penstock.planner.duckdb_sql.duckdb_tree import fragment
from penstock.planner.duckdb_sql.folding import evaluate


def test_a_process_can_be_forked_from_another_thread_afterwards() -> None:
    """Spark's launcher forks in a thread of its own, after other threads have planned statements."""
    assert evaluate(fragment("1 + 1")) == 2
    codes: list[int] = []

    def launch() -> None:
        done = subprocess.run(["true"], preexec_fn=lambda: None, check=False)
        codes.append(done.returncode)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert codes == [0]
