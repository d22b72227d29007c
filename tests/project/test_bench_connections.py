"""The benchmark of many connections: what its clients send is understood, and what they count is right."""

from __future__ import annotations

import pytest
from conftest import times

from bench.connections import PROTOCOLS, measure


@pytest.mark.parametrize("protocol", list(PROTOCOLS)[:times(1, len(PROTOCOLS))])
def test_connections_insert_and_ask(protocol: str) -> None:
    """Beside attackers nothing goes wrong, no row is missing, and the attackers are sent away."""
    line = measure(protocol, 3, 60.0, 3.0, attacked=True)
    assert line["errors"] == {}
    assert line["rows_missing"] == 0
    assert line["inserts"] > 0
    assert not any("let in" in name or name == "login: 200" for name in line["attackers"])
    assert {name.partition(":")[0] for name in line["attackers"]} == {"login", "oversized", "half-open"}
