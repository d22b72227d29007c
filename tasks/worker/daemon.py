"""The process from which Spark forks workers: imports the big libraries once, then hands over to PySpark's daemon.

Starts neither threads nor gRPC: neither survives a fork. Workers share these pages, and start in milliseconds.
"""

from __future__ import annotations

import os

import duckdb
import lmdb
import numpy
import pyarrow
import pyarrow.compute
import pyarrow.ipc
import pyspark.worker

import penstock.tasks.worker.task_builder
import penstock.tasks.worker.worker_process
from penstock.common.allocators import keep_freed_memory
from penstock.common.closed_duckdb import open_before_forks
from penstock.common.private import UMASK
from penstock.common.responsiveness import leave_out_what_stays
from penstock.tasks.compiled.compiled_loops import load_or_have_compiled

#: Imported for the workers; named here so that no tool takes the imports for leftovers.
PRELOADED = (duckdb, lmdb, numpy, pyarrow, pyspark.worker, penstock.tasks.worker.task_builder,
             penstock.tasks.worker.worker_process)


def main() -> None:
    """Serves fork requests on Spark's terms until Spark closes standard input."""
    from pyspark.daemon import manager

    # As PySpark's daemon does: with this process all end that it starts.
    os.setpgid(0, 0)
    load_or_have_compiled()
    open_before_forks()
    # What exists now lives as long as the process: the collector needn't touch, and so copy, its pages.
    leave_out_what_stays()
    # What libraries and users' functions write isn't for other users of the machine either; workers inherit it.
    os.umask(UMASK)
    keep_freed_memory()
    manager()


if __name__ == "__main__":
    main()
