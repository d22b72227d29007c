"""Files of results: one per delivery, whose name says which one it is."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from penstock.common.errors import ContentRefusedError
from penstock.planner.task_plans.external_rows import IDENTITY
from penstock.planner.task_plans.stream_plan import ExternalSinkPlan
from penstock.sql.tree.statements import ExternalFormat
from penstock.tasks.external.connectors.files import Folder
from penstock.tasks.external.emit.async_sink_writer import Delivery
from penstock.tasks.external.emit.external_writers import checkpoint_of, part_of
from penstock.tasks.external.emit.result_events import ExternalRows, json_text

_ENDINGS: dict[ExternalFormat, str] = {"parquet": "parquet", "json": "jsonl", "csv": "csv", "avro": "avro"}


class FilesTarget:
    """A folder. A delivery that comes again finds its own file: exactly once. A file with other results stays."""

    def __init__(self, folder: Folder, plan: ExternalSinkPlan, rows: ExternalRows, stream: str, index: int) -> None:
        assert plan.format is not None
        self._format = plan.format
        self._rows = rows
        self._prefix = f"{stream}-{index}"
        self._folder = folder

    def deliver(self, delivery: Delivery) -> None:
        number = delivery.number
        name = f"{self._prefix}-{checkpoint_of(number):08d}-{part_of(number):04d}.{_ENDINGS[self._format]}"
        there = self._folder.get(name)
        if there is None:
            self._folder.put(name, encoded(self._rows, delivery.rows, self._format))
        elif _ids_in(there, self._format) != [event.id for event in self._rows.events(delivery.rows)]:
            raise ContentRefusedError(
                f"refused: {name} is there, with other results", hint="another stream of this name has written there, "
                "or the data directory was set back; move the file away, and it is written")

    def close(self) -> None:
        """Nothing is open between deliveries."""


def _ids_in(data: bytes, format_: ExternalFormat) -> list[str] | None:
    """Returns the ids of the results in a file that `encoded` has made; None if it is another one."""
    try:
        if format_ == "parquet":
            return list(pq.read_table(pa.BufferReader(data), columns=[IDENTITY]).column(0).to_pylist())
        if format_ == "csv":
            as_text = pacsv.ConvertOptions(include_columns=[IDENTITY], column_types={IDENTITY: pa.string()})
            return list(pacsv.read_csv(pa.BufferReader(data), convert_options=as_text).column(0).to_pylist())
        if format_ == "avro":
            from penstock.tasks.external.connectors.avro import records_of

            return [record[IDENTITY] for record in records_of(data)]
        return [json.loads(line)[IDENTITY] for line in data.splitlines()]
    except (pa.ArrowException, ValueError, KeyError, TypeError):
        return None


def encoded(rows: ExternalRows, batch: pa.RecordBatch, format_: ExternalFormat) -> bytes:
    """Returns the file of some rows."""
    sink = io.BytesIO()
    if format_ == "parquet":
        pq.write_table(rows.named(batch), sink, compression="zstd")
    elif format_ == "csv":
        pacsv.write_csv(rows.plain(batch), sink)
    elif format_ == "avro":
        from penstock.tasks.external.connectors.avro import file_of

        return file_of(rows.avro_schema, (record for _, record in rows.records(batch)))
    else:
        sink.writelines(json_text(event.named).encode() + b"\n" for event in rows.events(batch))
    return sink.getvalue()
