"""A plain Spark program that reads Penstock's tables: the process that test_spark_source.py asks and kills.

`argv[1]` is a folder of its own. Each line of stdin is a command as a JSON list, each line of stdout its answer:
`{"answer": ...}` or `{"error": text}`:

- `["read", options, columns, condition]`: rows of the batch source, sorted; times in milliseconds, decimals as text
- `["schema", options]`: its columns with their types; `["windows", options]`: its answer to the query of the stream
- `["partitions", options, condition]`: how many partitions the batch source reads
- `["stream", options]`: starts a query that counts and sums per window and child table, in `argv[1]`
- `["done"]`: what the query has found once nothing is left to read; `["batches"]`: how many batches it has committed;
  both start it again if it has failed
- `["available", options]`: rows per batch of a query that ends with what there is

Prints `ready` first.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import penstock.spark


class Program:
    """Answers the commands."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        os.environ["PYSPARK_PYTHON"] = sys.executable
        self._spark = (
            SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC")
            .config("spark.log.level", "ERROR").getOrCreate())
        penstock.spark.register(self._spark)
        self._query: Any = None
        self._options: dict[str, str] = {}

    def read(self, options: dict[str, str], columns: list[str], condition: str = "true") -> list[list[Any]]:
        rows = self._source(options).where(condition)
        kinds = dict(rows.dtypes)
        chosen = [f.unix_millis(name) if kinds[name] == "timestamp" else
                  f.col(name).cast("string") if kinds[name].startswith("decimal") else f.col(name) for name in columns]
        return sorted(list(row) for row in rows.select(*chosen).collect())

    def schema(self, options: dict[str, str]) -> list[list[str]]:
        return [list(pair) for pair in self._source(options).dtypes]

    def partitions(self, options: dict[str, str], condition: str) -> int:
        return int(self._source(options).where(condition).rdd.getNumPartitions())

    def stream(self, options: dict[str, str]) -> None:
        self._options = options
        rows = self._spark.readStream.format("penstock").options(**options).load()
        results, checkpoints = str(self._folder / "results"), str(self._folder / "checkpoints")

        def keep(batch: DataFrame, _: int) -> None:
            batch.write.mode("overwrite").parquet(results)

        self._query = (_windows(rows).writeStream.outputMode("complete").foreachBatch(keep)
                       .option("checkpointLocation", checkpoints).start())

    def done(self) -> list[list[Any]]:
        self._start_again()
        self._query.processAllAvailable()
        return _lists(self._spark.read.parquet(str(self._folder / "results")))

    def windows(self, options: dict[str, str]) -> list[list[Any]]:
        return _lists(_windows(self._source(options)))

    def _start_again(self) -> None:
        if self._query is not None and self._query.exception() is not None:
            self.stream(self._options)

    def batches(self) -> int:
        self._start_again()
        return len(list((self._folder / "checkpoints" / "commits").glob("[0-9]*")))

    def available(self, options: dict[str, str]) -> list[int]:
        sizes: list[int] = []
        rows = self._spark.readStream.format("penstock").options(**options).load()
        query = (rows.writeStream.trigger(availableNow=True).foreachBatch(lambda batch, _: sizes.append(batch.count()))
                 .option("checkpointLocation", str(self._folder / "available")).start())
        query.awaitTermination()
        return sizes

    def _source(self, options: dict[str, str]) -> DataFrame:
        reader = self._spark.read.format("penstock")
        schema = options.pop("schema", None)
        return (reader.schema(schema) if schema else reader).options(**options).load()


def _windows(rows: DataFrame) -> DataFrame:
    grouped = rows.groupBy(f.window("ts", "10 seconds").start.alias("start"), "tbname")
    return grouped.agg(f.count("*").alias("n"), f.sum("v").alias("total"))


def _lists(rows: DataFrame) -> list[list[Any]]:
    return sorted([row.start.isoformat(), row.tbname, row.n, row.total] for row in rows.collect())


def main() -> None:
    """Answers until the line `exit`."""
    program = Program(Path(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "exit":
            return
        name, *arguments = json.loads(line)
        try:
            said: dict[str, Any] = {"answer": getattr(program, name)(*arguments)}
        except Exception as error:  # noqa: BLE001 - the test looks at it
            said = {"error": str(error)}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
