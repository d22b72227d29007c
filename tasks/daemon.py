"""The process from which Spark forks workers: imports the big libraries once, then hands over to PySpark's daemon.

Starts neither threads nor gRPC: neither survives a fork. Workers share these pages, and start in milliseconds.
"""

from __future__ import annotations

import gc

import duckdb
import lmdb
import numpy
import pyarrow
import pyarrow.compute
import pyarrow.ipc
import pyspark.worker

import penstock.tasks.build
import penstock.tasks.worker

#: Imported for the workers; named here so that no tool takes the imports for leftovers.
PRELOADED = (duckdb, lmdb, numpy, pyarrow, pyspark.worker, penstock.tasks.build, penstock.tasks.worker)


def main() -> None:
    """Serves fork requests on Spark's terms until Spark closes standard input."""
    from pyspark.daemon import manager

    # What exists now lives as long as the process: the collector needn't touch, and so copy, its pages.
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
