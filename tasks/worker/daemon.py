"""The process from which Spark forks workers: imports the big libraries once, then hands over to PySpark's daemon.

Starts neither threads nor gRPC: neither survives a fork. Workers share these pages, and start in milliseconds.
"""

from __future__ import annotations

import ctypes
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
from penstock.common.private import UMASK
from penstock.common.responsiveness import leave_out_what_stays
from penstock.tasks.compiled.compiled_loops import load_or_have_compiled

#: Imported for the workers; named here so that no tool takes the imports for leftovers.
PRELOADED = (duckdb, lmdb, numpy, pyarrow, pyspark.worker, penstock.tasks.worker.task_builder,
             penstock.tasks.worker.worker_process)

# Of glibc's <malloc.h>; the sizes are bytes.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TRIM_THRESHOLD, _MMAP_THRESHOLD = 128 << 20, 32 << 20


def main() -> None:
    """Serves fork requests on Spark's terms until Spark closes standard input."""
    from pyspark.daemon import manager

    # As PySpark's daemon does: with this process all end that it starts.
    os.setpgid(0, 0)
    load_or_have_compiled()
    # What exists now lives as long as the process: the collector needn't touch, and so copy, its pages.
    leave_out_what_stays()
    # What libraries and users' functions write isn't for other users of the machine either; workers inherit it.
    os.umask(UMASK)
    _keep_freed_memory()
    manager()


def _keep_freed_memory() -> None:
    """Has malloc, where it is glibc's, reuse what a block's columns took for the next block's, in this process and in
    those that it forks: pages that go back to the system cost more to get again than most columns to compute.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)


if __name__ == "__main__":
    main()
