"""Penstock's tables in Spark: `penstock.spark.register(spark)`, then `spark.read.format("penstock")`."""

from penstock.shell.api.spark_source import PenstockSource, register

__all__ = ["PenstockSource", "register"]
