"""CREATE STREAM that ends at any step: the stream and its result table are both there, or neither is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kits.engines.sandboxes import TestBed

from penstock.common.errors import UnavailableError
from penstock.mnode.catalog.catalog_store import Transaction
from penstock.vnode.store import manifest

CREATE = ("CREATE STREAM s TRIGGER AT_ONCE INTO d.o TAGS (site INT) AS SELECT _wstart ts, count(*) n FROM d.m "
          "PARTITION BY site INTERVAL(10s)")


class Crash(BaseException):
    """The engine's process ends here."""


def crash_at(number: int, calls: list[str], what: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    """Returns `what`, but the process ends before or `after` the `number`th of all `calls`."""

    def call(*arguments: Any) -> Any:
        calls.append(what.__qualname__)
        if len(calls) == number and not after:
            raise Crash
        result = what(*arguments)
        if len(calls) == number:
            raise Crash
        return result

    return call


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_leaves_stream_and_table_or_neither(
    tmp_path: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and behind each commit of the catalog and each MANIFEST that the statement writes."""
    found = set()
    threads = set(threading.enumerate())
    for number in range(1, 50):
        directory = tmp_path / str(number)
        directory.mkdir()
        calls: list[str] = []
        with TestBed(directory=directory) as bed:
            bed.all("CREATE DATABASE d VGROUPS 2", "USE d", "CREATE STABLE d.m (ts TIMESTAMP, v INT) TAGS (site INT)",
                    "INSERT INTO d.t USING d.m TAGS (1) VALUES (1700000000000, 1)")
            with monkeypatch.context() as patch:
                # What is done right before a commit, and right behind it.
                committing = "change_memory" if after else "end"
                patch.setattr(Transaction, committing,
                              crash_at(number, calls, getattr(Transaction, committing), after=after))
                patch.setattr(manifest, "save", crash_at(number, calls, manifest.save, after=after))
                try:
                    bed.engine.execute(CREATE, bed.session)
                except Crash:
                    bed.engine.abandon()
        assert set(threading.enumerate()) <= threads
        if len(calls) < number:
            assert found == {True, False}
            return
        with TestBed(directory=directory) as bed:
            bed.all("USE d")
            known = bed.engine.catalog.streams.named("s") is not None
            found.add(known)
            assert (bed.engine.catalog.table("d", "o") is not None) == known
            assert bed.engine.catalog.staged_tables("d") == []
            if not known:
                bed.all(CREATE)
            bed.all("INSERT INTO d.t VALUES (1700000010000, 1)")
            assert bed.rows("SELECT count(*) FROM d.o")[0][0] >= 1
    raise AssertionError("the steps must come to an end")


def test_a_stream_that_cannot_start_leaves_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CREATE STREAM that is refused when its tasks should start takes the stream and its table back in one step."""
    with TestBed() as bed:
        bed.all("CREATE DATABASE d VGROUPS 1", "USE d", "CREATE STABLE d.m (ts TIMESTAMP, v INT) TAGS (site INT)")

        def refuse(*_: Any) -> None:
            raise UnavailableError("no controller")

        with monkeypatch.context() as patch:
            patch.setattr(bed.engine.streams.starts, "run", refuse)
            with pytest.raises(UnavailableError):
                bed.engine.execute(CREATE, bed.session)
        assert bed.engine.catalog.streams.named("s") is None
        assert bed.engine.catalog.table("d", "o") is None
        bed.all(CREATE)
        assert bed.engine.catalog.table("d", "o") is not None
