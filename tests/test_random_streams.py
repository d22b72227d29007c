"""Random streams over random schemas: with nothing ignored, each result equals the batch, after every step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from random_player import Player, share_computers
from random_streams import History, histories


@pytest.fixture(scope="module", autouse=True)
def shared_computers() -> Iterator[None]:
    """One DuckDB for all tasks of this module."""
    with pytest.MonkeyPatch.context() as patch:
        share_computers(patch.setattr)
        yield


@given(history=histories())
def test_every_stream_equals_the_batch(history: History) -> None:
    """Whatever the schema, the window, the trigger, the order of rows, updates, deletes, kills and vnodes."""
    with tempfile.TemporaryDirectory() as folder:
        player = Player(Path(folder), history)
        try:
            player.play()
        finally:
            player.close()
