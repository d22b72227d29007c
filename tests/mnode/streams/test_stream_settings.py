"""What the tasks of a stream work by: its options go before the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.common.config import load_config
from penstock.common.paths import DataPaths
from penstock.mnode.streams.stream_settings import stream_settings
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import CreateStream


@pytest.mark.parametrize(("latency", "seconds"), [
    ("0", 0.0), ("0s", 0.0), ("500u", 0.0005), ("50a", 0.05), ("10s", 10.0)])
def test_latency_goes_before_the_configuration(latency: str, seconds: float, tmp_path: Path) -> None:
    """Tasks get it in seconds; without it they have none of their own."""
    def latency_of(options: str) -> float | None:
        statement = parse_one(f"CREATE STREAM s {options} INTO o AS SELECT count(*) FROM m INTERVAL(1s)")
        assert isinstance(statement, CreateStream)
        return stream_settings(load_config({}), DataPaths(tmp_path), statement.options).latency_s

    assert latency_of(f"LATENCY {latency}") == seconds
    assert latency_of("") is None
