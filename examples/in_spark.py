"""Tables in a plain Spark program: a batch, and a stream that goes on where it was when it was stopped."""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count, window

import penstock
import penstock.spark


def insert(data: str, first: int) -> None:
    """Writes a reading per second of two meters; the engine ends with the connection, but it needn't."""
    with penstock.connect(data) as con:
        con.execute("CREATE DATABASE IF NOT EXISTS power")
        con.execute("CREATE STABLE IF NOT EXISTS power.meters (ts TIMESTAMP, volts INT) TAGS (place VARCHAR(10))")
        for n in range(first, first + 90):
            con.execute(f"INSERT INTO power.m{n % 2} USING power.meters TAGS ('Rome') "
                        f"VALUES ({1_714_557_600_000 + n * 1000}, {220 + n % 7})")


def show_minutes(rows: DataFrame, checkpoints: Path) -> None:
    """Counts what has come by now and wasn't there the last time, together with what was."""
    minutes = rows.groupBy(window("ts", "1 minute").start.alias("minute")).agg(count("*").alias("readings"))
    query = (minutes.writeStream.trigger(availableNow=True).outputMode("complete")
             .option("checkpointLocation", str(checkpoints))
             .foreachBatch(lambda found, _: found.orderBy("minute").show()).start())
    query.awaitTermination()


def main(folder: Path) -> None:
    data = str(folder / "data")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
             .config("spark.sql.session.timeZone", "UTC").config("spark.ui.showConsoleProgress", "false").getOrCreate())
    penstock.spark.register(spark)
    source = {"path": data, "table": "power.meters"}

    insert(data, 0)
    table = spark.read.format("penstock").options(**source).load()
    table.where("tbname = 'm1' AND ts < '2024-05-01 10:00:06'").orderBy("ts").show()

    rows = spark.readStream.format("penstock").options(**source).load()
    show_minutes(rows, folder / "checkpoints")
    insert(data, 90)
    show_minutes(rows, folder / "checkpoints")


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        main(Path(name))
