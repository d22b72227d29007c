"""Turns a result (an Arrow table) into text: box tables, vertical rows, CSV, JSON and Markdown.

Nothing here knows the engine or the terminal; width and colour are arguments.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.types as types
from rich.cells import cell_len

from penstock.common.duckdb_types import is_plain, json_values, plain
from penstock.common.result_texts import texts_of_results

Mode = Literal["box", "csv", "json", "jsonlines", "line", "markdown"]
MODES: tuple[Mode, ...] = get_args(Mode)

NULL = "NULL"
ELLIPSIS = "…"
TEXT_WIDTH_MIN = 23  # a timestamp with milliseconds
_SECONDS_PER_BUCKET = 900  # zone offsets change at quarter hours only
_UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class Style:
    """How values are shown: the zone of timestamps, characters of a text value, columns of the terminal.

    None means unlimited.
    """

    time_zone: str = "UTC"
    text_width: int | None = None
    terminal_width: int | None = None


@dataclass(frozen=True, slots=True)
class Cells:
    """A column as text: `values` has None for NULL; numbers are right-aligned."""

    name: str
    values: Sequence[str | None]
    is_number: bool


def format_table(table: pa.Table, mode: Mode, style: Style) -> str:
    """Returns `table` in `mode`, ending with a newline unless it is empty text.

    A single column or row that a box would cut is shown whole: as lines, or vertically.
    """
    if mode == "box" and 1 in table.shape and not _fits_box(columns := text_columns(table, style), style):
        return _lines(columns[0]) if table.num_columns == 1 else _line(table, style)
    return _FORMATTERS[mode](table, style)


def text_columns(table: pa.Table, style: Style) -> list[Cells]:
    """Returns all columns of `table` as text: timestamps in the zone, NULL as None, shortest numbers."""
    return [_cells(*named, style) for named in zip(table.column_names, table.columns, strict=True)]


# --- columns to text ------------------------------------------------------------------------------


def _cells(name: str, column: pa.ChunkedArray, style: Style) -> Cells:
    kind = column.type
    if types.is_timestamp(kind):
        return Cells(name, timestamp_texts(column, style.time_zone), is_number=False)
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    to_text = _number_text(kind) if is_number else _plain_text
    with texts_of_results():
        values = plain(column).to_pylist()
    return Cells(name, [None if value is None else to_text(value) for value in values], is_number)


def timestamp_texts(column: pa.ChunkedArray, time_zone: str) -> list[str | None]:
    """Returns timestamps as `2018-10-03 14:38:05.000` in `time_zone`, to the digit of their unit."""
    unit = column.type.unit
    per_second = _UNITS_PER_SECOND[unit]
    valid = np.asarray(column.is_valid().to_numpy(), dtype=bool)
    values = column.cast(pa.int64()).fill_null(0).to_numpy()
    buckets, places = np.unique(values // (_SECONDS_PER_BUCKET * per_second), return_inverse=True)
    zone = ZoneInfo(time_zone)
    offsets = [_offset_seconds(zone, int(bucket) * _SECONDS_PER_BUCKET) * per_second for bucket in buckets]
    local = values + np.array(offsets, dtype=np.int64)[places]
    texts = np.datetime_as_string(local.astype(f"datetime64[{unit}]")).tolist()
    return [text.replace("T", " ") if present else None for text, present in zip(texts, valid, strict=True)]


def _offset_seconds(zone: ZoneInfo, epoch_seconds: int) -> int:
    try:
        offset = datetime.fromtimestamp(epoch_seconds, zone).utcoffset()
    except (OverflowError, ValueError, OSError):  # outside of the years 1 to 9999
        return 0
    assert offset is not None, "aware times have an offset"
    return int(offset.total_seconds())


def _number_text(kind: pa.DataType) -> Callable[[Any], str]:
    if types.is_float32(kind):
        return lambda value: str(np.float32(value))
    return str


def _plain_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return "\\x" + value.hex().upper()
    return str(value)


# --- box ------------------------------------------------------------------------------------------


def _box(table: pa.Table, style: Style) -> str:
    if not table.column_names:
        return ""
    columns = [_shortened(cells, style.text_width) for cells in text_columns(table, style)]
    widths = [_column_width(cells) for cells in columns]
    if style.terminal_width is not None:
        columns = _narrowed(columns, widths, style.terminal_width)
        widths = [_column_width(cells) for cells in columns]
    kept = _columns_that_fit(widths, style.terminal_width)
    shown = [columns[index] if index is not None else _elided(table.num_rows) for index in kept]
    shown_widths = [widths[index] if index is not None else 1 for index in kept]

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * (width + 2) for width in shown_widths) + right

    def row(texts: Sequence[str], align_right: Sequence[bool]) -> str:
        padded = (_pad(*cell) for cell in zip(texts, shown_widths, align_right, strict=True))
        return "│ " + " │ ".join(padded) + " │"

    heading = row([cells.name for cells in shown], [False] * len(shown))
    lines = [rule("┌", "┬", "┐"), heading, rule("├", "┼", "┤")]
    numbers = [cells.is_number for cells in shown]
    for values in zip(*(cells.values for cells in shown), strict=True):
        lines.append(row([NULL if value is None else value for value in values], numbers))
    lines.append(rule("└", "┴", "┘"))
    if None in kept:
        lines.append(f"{len(kept) - 1} of {len(columns)} columns fit into the terminal; \\G shows all")
    return "\n".join(lines) + "\n"


def _fits_box(columns: Sequence[Cells], style: Style) -> bool:
    """Whether a box shows all values as they are, in lines that the terminal has room for."""
    if any(shown != cells for cells, shown in zip(
            columns, (_shortened(cells, style.text_width) for cells in columns), strict=True)):
        return False
    return _has_room([_column_width(cells) for cells in columns], style.terminal_width)


def _has_room(widths: Sequence[int], terminal_width: int | None) -> bool:
    return terminal_width is None or sum(widths) + 3 * len(widths) + 1 <= terminal_width


def _shortened(cells: Cells, limit: int | None) -> Cells:
    values = [None if value is None else _one_line(value, limit) for value in cells.values]
    return Cells(cells.name, values, cells.is_number)


def _one_line(text: str, limit: int | None) -> str:
    line = text.replace("\r", "\\r").replace("\n", "\\n").replace("\t", "\\t")
    if limit is None or len(line) <= limit:
        return line
    return line[: limit - 1] + ELLIPSIS


def _narrowed(columns: Sequence[Cells], widths: Sequence[int], terminal_width: int) -> list[Cells]:
    """Returns the columns with texts cut as far as it helps, but not below a width that still says something."""
    numbers = sum(width for width, cells in zip(widths, columns, strict=True) if cells.is_number)
    room = terminal_width - 3 * len(columns) - 1 - numbers
    texts = sorted(width for width, cells in zip(widths, columns, strict=True) if not cells.is_number)
    limit = max(texts, default=0)
    for index, width in enumerate(texts):
        # Texts from here on share what the shorter ones leave.
        share = (room - sum(texts[:index])) // (len(texts) - index)
        if share < width:
            limit = max(share, TEXT_WIDTH_MIN)
            break
    return [cells if cells.is_number else _shortened(cells, limit) for cells in columns]


def _columns_that_fit(widths: Sequence[int], terminal_width: int | None) -> list[int | None]:
    """Returns the columns to show; None stands for those left out in the middle."""
    everything: list[int | None] = list(range(len(widths)))
    if terminal_width is None or _has_room(widths, terminal_width):
        return everything
    room = terminal_width - 5  # the borders and the column of the ellipsis
    head: list[int | None] = []
    tail: list[int | None] = []
    first, last = 0, len(widths) - 1
    while first <= last:
        from_head = len(head) < 3 * (len(tail) + 1)  # what comes first matters more
        index = first if from_head else last
        room -= widths[index] + 3
        if room < 0:
            break
        if from_head:
            head.append(index)
            first += 1
        else:
            tail.insert(0, index)
            last -= 1
    return [*head, None, *tail] if head else everything


def _elided(rows: int) -> Cells:
    return Cells(ELLIPSIS, [ELLIPSIS] * rows, is_number=False)


def _column_width(cells: Cells) -> int:
    return max([cell_len(cells.name), *map(_width, cells.values)])


def _width(text: str | None) -> int:
    return len(NULL) if text is None else cell_len(text)


def _pad(text: str, width: int, align_right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if align_right else text + space


def _lines(cells: Cells) -> str:
    """A column under its name."""
    values = "".join(f"{NULL if value is None else value}\n" for value in cells.values)
    return f"{cells.name}\n{'─' * cell_len(cells.name)}\n{values}"


# --- the other modes ------------------------------------------------------------------------------


def _line(table: pa.Table, style: Style) -> str:
    """Vertical rows, as `\\G` asks for."""
    columns = text_columns(table, style)
    width = max((cell_len(cells.name) for cells in columns), default=0)
    lines = []
    for index in range(table.num_rows):
        lines.append(f"*************************** {index + 1}.row ***************************")
        for cells in columns:
            value = cells.values[index]
            lines.append(f"{_pad(cells.name, width, align_right=True)}: {NULL if value is None else value}")
    return "".join(f"{line}\n" for line in lines)


def _csv(table: pa.Table, style: Style) -> str:
    """Comma-separated values with a header; NULL is an empty field."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows(zip(*(cells.values for cells in text_columns(table, style)), strict=True))
    return buffer.getvalue()


def _json_rows(table: pa.Table, style: Style) -> list[str]:
    columns = [
        cells.values if types.is_timestamp(column.type) else
        column.to_pylist() if is_plain(column.type) else json_values(column)
        for cells, column in zip(text_columns(table, style), table.columns, strict=True)
    ]
    names = table.column_names
    return [
        json.dumps(dict(zip(names, map(_json_value, row), strict=True)), ensure_ascii=False)
        for row in zip(*columns, strict=True)
    ]


def _json_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str | list | dict):
        return value
    return _plain_text(value)


def _json(table: pa.Table, style: Style) -> str:
    rows = _json_rows(table, style)
    return "[" + ",\n ".join(rows) + "]\n"


def _jsonlines(table: pa.Table, style: Style) -> str:
    return "".join(f"{row}\n" for row in _json_rows(table, style))


def _markdown(table: pa.Table, style: Style) -> str:
    columns = text_columns(table, style)
    lines = [
        "| " + " | ".join(_markdown_text(cells.name) for cells in columns) + " |",
        "|" + "|".join("---:" if cells.is_number else "---" for cells in columns) + "|",
    ]
    for values in zip(*(cells.values for cells in columns), strict=True):
        texts = [NULL if value is None else _markdown_text(value) for value in values]
        lines.append("| " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def _markdown_text(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


_FORMATTERS: dict[Mode, Callable[[pa.Table, Style], str]] = {
    "box": _box,
    "csv": _csv,
    "json": _json,
    "jsonlines": _jsonlines,
    "line": _line,
    "markdown": _markdown,
}
