"""Constants are computed while planning, without getting into the way of processes that are started meanwhile."""

from __future__ import annotations

import subprocess
import threading

from penstock.planner.duckdb_sql.duckdb_tree import fragment
from penstock.planner.duckdb_sql.folding import aggregate_names, evaluate, type_over


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


def test_one_question_does_not_keep_another_from_being_asked() -> None:
    """They share a connection, and a value is taken of what may have more rows."""
    aggregate_names.cache_clear()
    assert evaluate(fragment("2 + 3")) == 5
    assert {"sum", "arg_max"} <= aggregate_names()
    assert evaluate(fragment("3 + 4")) == 7
    assert type_over(fragment("median(1::INT)"), {}) == "DOUBLE"
