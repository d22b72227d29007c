"""Points of OpenTSDB as line protocol: read back, the lines say what the points said."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import InvalidValueError
from penstock.sql.rows.line_protocol import parse_lines
from penstock.sql.rows.line_scanner import scan_line
from penstock.sql.rows.opentsdb_points import PointLines, from_json, from_telnet
from penstock.sql.types import Kind

TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="\\"), min_size=1)
METRICS = TEXTS.filter(lambda text: not text.startswith("#") and text.strip() == text)
WORDS = TEXTS.filter(lambda text: len(text.split()) == 1 and text.strip() == text and "=" not in text
                     and not text.startswith("#") and text != "put")
SECONDS, MILLISECONDS = st.integers(10**9, 9 * 10**9), st.integers(10**12, 9 * 10**12)


def read(lines: PointLines) -> list[tuple[str, dict[str, str], Any, int]]:
    """Returns what line protocol makes of the lines: metric, tags, value, nanoseconds."""
    assert not lines.refused
    found = []
    for line in lines.lines.decode().split("\n"):
        series, [(name, kind, value)], time = scan_line(line)
        assert name == "_value"
        found.append((series.measurement, dict(series.tags), (kind, value), time))
        assert [points.num_rows for points in parse_lines(line.encode())] == [1]
    return found


@given(st.lists(st.tuples(METRICS, st.dictionaries(TEXTS, TEXTS, max_size=3),
                          st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | TEXTS,
                          MILLISECONDS), min_size=1, max_size=4))
def test_json_says_the_same_as_lines(points: list[tuple[str, dict[str, str], Any, int]]) -> None:
    """Whatever stands in names and texts; numbers are DOUBLE, texts NCHAR."""
    document = [{"metric": metric, "timestamp": time, "value": value, "tags": tags}
                for metric, tags, value, time in points]
    kinds = {bool: Kind.BOOL, float: Kind.DOUBLE, str: Kind.NCHAR}
    assert read(from_json(json.dumps(document).encode())) == [
        (metric, tags, (kinds[type(value)], value), time * 10**6) for metric, tags, value, time in points]


@given(st.lists(st.tuples(WORDS, st.dictionaries(WORDS, WORDS, max_size=3),
                          st.floats(allow_nan=False, allow_infinity=False), SECONDS), min_size=1, max_size=4))
def test_telnet_says_the_same_as_lines(points: list[tuple[str, dict[str, str], float, int]]) -> None:
    """With and without `put`."""
    text = "\n".join(" ".join([*(["put"] if number % 2 else []), metric, str(time), repr(value),
                               *(f"{key}={tag}" for key, tag in tags.items())])
                     for number, (metric, tags, value, time) in enumerate(points))
    assert read(from_telnet(text.encode())) == [
        (metric, tags, (Kind.DOUBLE, value), time * 10**9) for metric, tags, value, time in points]


@given(st.binary() | st.text().map(str.encode) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["metric", "timestamp", "value", "tags", "type"]) | st.text(), inner),
).map(lambda document: json.dumps(document).encode()))
def test_anything_else_is_refused(data: bytes) -> None:
    """By one error, and what is made of the rest are lines, one for each point."""
    for convert in (from_json, from_telnet):
        with suppress(InvalidValueError):
            lines = convert(data)
            assert len(lines.refused) < max(lines.count, 1)
            assert all(line.endswith(tuple("0123456789")) for line in filter(None, lines.lines.decode().split("\n")))


@pytest.mark.parametrize(("value", "kind", "read_as"), [
    ({"value": 7, "type": "bigint"}, Kind.BIGINT, 7), ({"value": 7, "type": "utinyint"}, Kind.UTINYINT, 7),
    ({"value": 0.5, "type": "FLOAT"}, Kind.FLOAT, 0.5), ({"value": True, "type": "bool"}, Kind.BOOL, True),
    ({"value": 'a "b" \\', "type": "binary"}, Kind.VARCHAR, 'a "b" \\'),
    ({"value": "ö", "type": "nchar"}, Kind.NCHAR, "ö"), (7, Kind.DOUBLE, 7.0),
])
def test_a_value_may_say_its_type(value: Any, kind: Kind, read_as: Any) -> None:
    """In JSON, by TDengine's names."""
    point = {"metric": "m", "timestamp": {"value": 5, "type": "us"}, "value": value, "tags": {"n": 1, "b": True}}
    assert read(from_json(json.dumps(point).encode())) == [("m", {"n": "1", "b": "true"}, (kind, read_as), 5000)]


@pytest.mark.parametrize(("data", "told"), [
    (b'{"metric": "m"', "not JSON"), (b"[" * 100_000, "not JSON"), (b'{"metric": "m", "timestamp": 0}', "a value"),
    (b'[{"metric": "m", "timestamp": 17, "value": 1}]', "10 digits are seconds"),
    (b'{"metric": "m", "timestamp": 0, "value": NaN}', "NaN"),
    (b'{"metric": "m", "timestamp": 0, "value": 1e999}', "1:"),
    (b'{"metric": "m", "timestamp": 0, "value": {"value": 300, "type": "tinyint"}}', "out of the range"),
    (b'{"metric": "m\\n", "timestamp": 0, "value": 1}', "control character"),
    (b'{"metric": "m", "timestamp": 0, "value": 1, "tags": {"": "x"}}', "a tag is empty"),
    (b'{"metric": "m", "timestamp": 0, "value": 1, "tags": {"a": []}}', "neither text nor a number"),
    (b'{"metric": "\\ud800", "timestamp": 0, "value": 1}', "half a character"),
])
def test_what_is_wrong_with_a_point_is_told(data: bytes, told: str) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidValueError, match=re.escape(told)):
        from_json(data)


def test_a_wrong_point_costs_only_itself() -> None:
    """The others keep their places, so that later errors name them rightly."""
    lines = from_telnet(b"a 1700000000 1 t=x\nb 17 1\n\nc 1700000000 nothing\nd 1700000000 1,other=2\ne 0 7i")
    assert lines.lines == b"a,t=x _value=1 1700000000000000000\n\n\n\n\ne _value=7i 0"
    assert lines.count == 5
    assert [str(error).partition(":")[0] for error in lines.refused] == ["line 2", "line 4", "line 5"]
