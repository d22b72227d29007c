"""`penstock import`: brings files of rows into tables, piece by piece, so that they needn't fit into memory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.common.config import Config
from penstock.common.errors import InvalidStatementError, InvalidValueError, NotFoundError, PenstockError
from penstock.mnode.write.csv_rows import CsvReader, is_packed, unpacked
from penstock.shell.api.dbapi import Connection, connect
from penstock.shell.commands.command_options import IMPORT_FORMATS

BLOCK_BYTES = 8 << 20
PIECE_ROWS = 1 << 18

_ENDINGS = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".line": "line", ".lp": "line",
            ".influx": "line", ".arrow": "arrow", ".arrows": "arrow", ".feather": "arrow", ".ipc": "arrow"}
_ARROW_FILE_MAGIC = b"ARROW1"


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the command line asks for. `table` is a name as in SQL; for lines the name of a database."""

    table: str
    format: str | None = None
    header: bool = False
    columns: tuple[str, ...] | None = None
    quote: str | None = None
    precision: str = "ns"


@dataclass(slots=True)
class ImportProgress:
    """How far an import has come; `advanced` is called with (bytes read of all files so far, rows written)."""

    advanced: Callable[[int, int], None]
    rows: int = 0
    bytes_before: int = 0
    bytes: int = field(default=0)

    def add(self, rows: int, bytes_of_file: int) -> None:
        self.rows += rows
        self.bytes = self.bytes_before + bytes_of_file
        self.advanced(self.bytes, self.rows)


def run_import(arguments: argparse.Namespace, config: Config) -> int:
    """Imports what the command line names and prints how much it was. Raises PenstockErrors that name file and row."""
    columns = None if arguments.columns is None else tuple(name.strip() for name in arguments.columns.split(","))
    options = ImportOptions(
        arguments.into, arguments.format, arguments.header, columns, arguments.quote, arguments.precision)
    if options.quote is not None and (len(options.quote) != 1 or not options.quote.isascii()):
        raise InvalidStatementError(f"--quote takes one character, not {options.quote!r}")
    paths = [Path(name).expanduser() for name in arguments.files]
    formats = [_format_of(path, options) for path in paths]
    shown = sys.stderr.isatty() if arguments.progress is None else arguments.progress
    start = perf_counter()
    with connect(arguments.data, config) as connection, _progress(paths, shown) as progress:
        for path, kind in zip(paths, formats, strict=True):
            import_file(connection, path, kind, options, progress)
    seconds = perf_counter() - start
    files = f"{len(paths)} files" if len(paths) > 1 else str(paths[0])
    sys.stdout.write(f"{progress.rows:,} rows from {files} into {options.table} "
                     f"({seconds:.1f}s, {progress.rows / seconds:,.0f} rows/s)\n")
    return 0


def import_file(
    connection: Connection, path: Path, kind: str, options: ImportOptions, progress: ImportProgress
) -> None:
    """Imports one file of the format `kind`. What was written before an error stays; doing it again is harmless."""
    before = progress.rows
    try:
        with path.open("rb") as file:
            _IMPORTS[kind](connection, path, file, options, progress)
            progress.bytes_before += path.stat().st_size
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}") from error
    except OSError as error:
        raise NotFoundError(f"cannot read {path}: {error}") from error
    except PenstockError as error:
        written = progress.rows - before
        hints = [error.hint] if error.hint else []
        if written:
            hints.append(f"{written:,} rows before it are written; importing them again changes nothing")
        message = error.message if str(path) in error.message else f"{path}, {error.message}"
        raise type(error)(message, code=error.code, hint="; ".join(hints) or None) from error


def _format_of(path: Path, options: ImportOptions) -> str:
    if options.format is not None:
        return options.format
    plain = path.with_suffix("") if is_packed(path) else path
    found = _ENDINGS.get(plain.suffix.lower())
    if found is None:
        raise InvalidStatementError(f"the ending of {path} doesn't tell its format",
                                    hint=f"--format {'|'.join(IMPORT_FORMATS)}")
    return found


# --- text --------------------------------------------------------------------------------------------------------


def _blocks(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Yields pieces of whole lines."""
    with unpacked(path, file) as stream:
        rest = b""
        while block := stream.read(BLOCK_BYTES):
            block = rest + block
            end = block.rfind(b"\n") + 1
            rest = block[end:]
            if end:
                yield block[:end]
        if rest:
            yield rest


def _import_csv(
    connection: Connection, path: Path, file: BinaryIO, options: ImportOptions, progress: ImportProgress
) -> None:
    engine, session = connection.lease.engine, connection.session
    layout = engine.csv_layout(options.table, options.columns, session, has_header=options.header or None,
                               quote=options.quote)
    with unpacked(path, file) as stream:
        for cells in CsvReader(stream, str(path), layout):
            progress.add(engine.insert_cells(options.table, cells, session).affected, file.tell())


def _import_lines(
    connection: Connection, path: Path, file: BinaryIO, options: ImportOptions, progress: ImportProgress
) -> None:
    line = 1
    for block in _blocks(path, file):
        rows = connection.lease.engine.ingest_lines(
            block, options.table, options.precision, connection.session, first_line=line)
        line += block.count(b"\n")
        progress.add(rows, file.tell())


# --- columns -----------------------------------------------------------------------------------------------------


def _import_parquet(
    connection: Connection, path: Path, file: BinaryIO, options: ImportOptions, progress: ImportProgress
) -> None:
    try:
        with pq.ParquetFile(file) as source:
            total = max(source.metadata.num_rows, 1)
            _insert(connection, source.iter_batches(PIECE_ROWS), options, progress,
                    lambda rows: path.stat().st_size * rows // total)
    except pa.ArrowInvalid as error:
        raise InvalidValueError(f"{path} is not a Parquet file that can be read: {error}") from error


def _import_arrow(
    connection: Connection, path: Path, file: BinaryIO, options: ImportOptions, progress: ImportProgress
) -> None:
    try:
        is_file = file.read(len(_ARROW_FILE_MAGIC)) == _ARROW_FILE_MAGIC
        file.seek(0)
        if is_file:
            reader = pa.ipc.open_file(file)
            batches = (reader.get_batch(place) for place in range(reader.num_record_batches))
        else:
            batches = iter(pa.ipc.open_stream(file))
        _insert(connection, batches, options, progress, lambda rows: file.tell())
    except pa.ArrowInvalid as error:
        raise InvalidValueError(f"{path} is not an Arrow file that can be read: {error}") from error


def _insert(
    connection: Connection,
    batches: Iterator[pa.RecordBatch],
    options: ImportOptions,
    progress: ImportProgress,
    position: Callable[[int], int],
) -> None:
    engine = connection.lease.engine
    done = 0
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        engine.insert_arrow(options.table, rows, connection.session, first_row=done)
        done += batch.num_rows
        progress.add(batch.num_rows, position(done))


_IMPORTS: dict[str, Callable[[Connection, Path, BinaryIO, ImportOptions, ImportProgress], None]] = {
    "csv": _import_csv, "parquet": _import_parquet, "line": _import_lines, "arrow": _import_arrow}


# --- progress ----------------------------------------------------------------------------------------------------


@contextmanager
def _progress(paths: list[Path], shown: bool) -> Iterator[ImportProgress]:
    """Gives the progress of the import, and a bar on the error output if it is to be shown."""
    if not shown:
        yield ImportProgress(lambda bytes_read, rows: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    total = sum(path.stat().st_size for path in paths if path.exists())
    columns = (BarColumn(), DownloadColumn(), TextColumn("{task.fields[rows]:,} rows"), TimeRemainingColumn())
    with Bar(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("import", total=total, rows=0)
        yield ImportProgress(lambda bytes_read, rows: bar.update(task, completed=bytes_read, rows=rows))
