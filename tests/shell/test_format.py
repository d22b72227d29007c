"""Results as text: boxes, vertical rows, CSV, JSON, Markdown; time zones and widths."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import NotFoundError, Position, SqlSyntaxError
from penstock.shell.terminal.error_text import error_text
from penstock.shell.terminal.result_format import MODES, Style, format_table, timestamp_texts

TABLE = pa.table({
    "ts": pa.array([1_538_548_685_000, None], pa.timestamp("ms")),
    "current": pa.array([10.3, None], pa.float32()),
    "phase": pa.array([2, -31], pa.int8()),
    "on": pa.array([True, None]),
    "place": pa.array(["Süd|West", ""]),
    "raw": pa.array([b"\x01\xff", None]),
})


def test_box_aligns_numbers_right_and_shows_null() -> None:
    """The default mode: a frame, numbers to the right, the text NULL."""
    assert format_table(TABLE, "box", Style()) == (
        "┌─────────────────────────┬─────────┬───────┬──────┬──────────┬────────┐\n"
        "│ ts                      │ current │ phase │ on   │ place    │ raw    │\n"
        "├─────────────────────────┼─────────┼───────┼──────┼──────────┼────────┤\n"
        "│ 2018-10-03 06:38:05.000 │    10.3 │     2 │ true │ Süd|West │ \\x01FF │\n"
        "│ NULL                    │    NULL │   -31 │ NULL │          │ NULL   │\n"
        "└─────────────────────────┴─────────┴───────┴──────┴──────────┴────────┘\n"
    )


def test_timestamps_are_shown_in_the_zone() -> None:
    """The session's time zone decides what a timestamp looks like, to the digit of its precision."""
    text = format_table(TABLE.slice(0, 1), "csv", Style(time_zone="Asia/Shanghai"))
    assert "2018-10-03 14:38:05.000" in text
    nanos = pa.chunked_array([pa.array([1], pa.timestamp("ns"))])
    assert timestamp_texts(nanos, "UTC") == ["1970-01-01 00:00:00.000000001"]


@given(
    st.lists(st.integers(0, 4_102_444_800_000), max_size=20),
    st.sampled_from(["Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "Australia/Lord_Howe", "UTC"]),
)
def test_timestamps_agree_with_the_standard_library(values: list[int], zone: str) -> None:
    """The vectorised conversion gives what `datetime` gives, one by one."""
    texts = timestamp_texts(pa.chunked_array([pa.array(values, pa.timestamp("ms"))]), zone)
    for value, text in zip(values, texts, strict=True):
        local = datetime.fromtimestamp(value // 1000, ZoneInfo(zone))
        assert text == f"{local:%Y-%m-%d %H:%M:%S}.{value % 1000:03d}"


def test_csv_reads_back() -> None:
    """CSV has a header, quotes what needs it, and empty fields for NULL."""
    rows = list(csv.reader(io.StringIO(format_table(TABLE, "csv", Style()))))
    assert rows[0] == TABLE.column_names
    assert rows[1] == ["2018-10-03 06:38:05.000", "10.3", "2", "true", "Süd|West", "\\x01FF"]
    assert rows[2] == ["", "", "-31", "", "", ""]


def test_json_reads_back() -> None:
    """JSON has numbers as numbers, NULL as null, and no NaN."""
    table = pa.table({"v": [1.5, float("nan"), None], "d": [Decimal("1.20"), None, None]})
    assert json.loads(format_table(table, "json", Style())) == [
        {"v": 1.5, "d": "1.20"}, {"v": None, "d": None}, {"v": None, "d": None},
    ]
    lines = format_table(TABLE, "jsonlines", Style()).splitlines()
    assert json.loads(lines[0])["place"] == "Süd|West"
    assert len(lines) == 2


def test_markdown_escapes_bars() -> None:
    """A bar in a value doesn't end its cell."""
    assert "Süd\\|West" in format_table(TABLE, "markdown", Style())


def test_vertical_rows() -> None:
    r"""`\G` shows one value per line, names to the right."""
    text = format_table(TABLE.slice(0, 1).select(["phase", "place"]), "line", Style())
    assert text == (
        "*************************** 1.row ***************************\nphase: 2\nplace: Süd|West\n"
    )


def test_long_and_wide_texts_are_cut() -> None:
    """Texts are cut at the configured width; line breaks don't break the frame; wide letters count double."""
    table = pa.table({"t": ["x" * 50, "two\nlines", "日本"], "v": [1, 2, 3]})
    lines = format_table(table, "box", Style(text_width=10)).splitlines()
    assert "xxxxxxxxx…" in lines[3]
    assert "two\\nlines" in lines[4]
    assert lines[5] == "│ 日本       │ 3 │"


def test_columns_that_do_not_fit_are_left_out_in_the_middle() -> None:
    """A narrow terminal keeps the first and last columns and says so."""
    table = pa.table({f"column_{index}": [index, index] for index in range(12)})
    lines = format_table(table, "box", Style(terminal_width=60)).splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert "column_0" in lines[1]
    assert "…" in lines[1]
    assert "column_11" in lines[1]
    assert lines[-1] == "4 of 12 columns fit into the terminal; \\G shows all"


@pytest.mark.parametrize(("value", "style"), [
    ("x" * 11, Style(text_width=10)), ("x" * 40, Style(terminal_width=30)), ("two\nlines", Style(text_width=10)),
])
def test_a_single_row_is_shown_whole(value: str, style: Style) -> None:
    """Where a box would cut it, or write its line breaks otherwise, it stands vertically; several rows are cut."""
    text = format_table(pa.table({"name": ["t"], "statement": [value]}), "box", style)
    assert text == f"{'*' * 27} 1.row {'*' * 27}\n     name: t\nstatement: {value}\n"
    assert value not in format_table(pa.table({"name": ["t"] * 2, "statement": [value] * 2}), "box", style)


def test_a_single_column_is_shown_whole() -> None:
    """As lines under its name, such as those of EXPLAIN, where a box would cut one of them."""
    plan = pa.table({"plan": ["x" * 11, None, "  y"]})
    assert format_table(plan, "box", Style(text_width=10)) == f"plan\n────\n{'x' * 11}\nNULL\n  y\n"
    assert format_table(plan, "box", Style(text_width=11)).startswith("┌")
    assert format_table(plan, "box", Style(terminal_width=12)).startswith("plan\n")


def test_a_single_row_that_fits_is_in_a_box() -> None:
    """Up to the last character that there is room for."""
    fits = format_table(pa.table({"v": ["x" * 10]}), "box", Style(text_width=10, terminal_width=14))
    assert fits.splitlines()[3] == "│ xxxxxxxxxx │"
    assert format_table(pa.table({"v": ["x" * 10]}), "box", Style(terminal_width=13)) == f"v\n─\n{'x' * 10}\n"


@given(
    st.lists(st.integers(1, 80), min_size=2, max_size=12), st.integers(60, 200), st.lists(st.booleans(), min_size=12)
)
def test_tables_fit_into_the_terminal(widths: list[int], terminal_width: int, numbers: list[bool]) -> None:
    """Whatever the columns, no line is wider than the terminal; texts are cut before columns are left out."""
    columns = [
        pa.array([10 ** min(width - 1, 17), 0] if number else ["x" * width, ""])
        for width, number in zip(widths, numbers, strict=False)
    ]
    names = [f"c{index}" for index in range(len(columns))]
    table = pa.Table.from_arrays(columns, names=names)
    lines = format_table(table, "box", Style(terminal_width=terminal_width)).splitlines()
    assert all(len(line) <= terminal_width for line in lines)
    if sum(min(max(width, 3), 23) + 3 for width in widths) + 1 <= terminal_width and not any(numbers[: len(widths)]):
        assert "of" not in lines[-1]


@pytest.mark.parametrize("mode", MODES)
def test_empty_results_have_a_form_in_each_mode(mode: str) -> None:
    """No rows is not an error in any mode."""
    assert isinstance(format_table(TABLE.slice(0, 0), mode, Style()), str)  # type: ignore[arg-type]


def test_duplicate_column_names_are_kept() -> None:
    """Two result columns of one name are both shown."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert format_table(table, "csv", Style()) == "a,a\n1,2\n"


def test_error_has_a_caret_under_the_offending_text() -> None:
    """The line of the statement is repeated with carets under the text that is wrong."""
    statement = "SELECT *\nFORM meters"
    error = SqlSyntaxError("expected FROM", position=Position(2, 1, "FORM"), hint="did you mean FROM?")
    assert error_text(error, statement) == (
        "ERROR 0x2600: expected FROM\n  line 2: FORM meters\n          ^^^^\nHint: did you mean FROM?"
    )


def test_caret_stays_in_view_in_long_lines() -> None:
    """Of a very long line the part around the mistake is shown."""
    statement = "INSERT INTO t VALUES " + "(1, 2) " * 1000 + "oops"
    error = SqlSyntaxError("no", position=Position(1, len(statement) - 3, "oops"))
    _, shown, carets = error_text(error, statement).splitlines()
    assert len(shown) < 120
    assert shown[carets.index("^"):] == "oops"


def test_errors_without_position_and_defects() -> None:
    """Without a position there is only the text; what isn't ours is called a defect."""
    assert error_text(NotFoundError("no table x")) == "ERROR: no table x"
    assert "defect" in error_text(ZeroDivisionError("by zero"))
    assert error_text(NotFoundError("x"), colour=True).startswith("\x1b[1m\x1b[31m")
