"""Golden scripts of streams with a trigger of their own, in an engine whose clock goes on where a script says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.basics.answer_text import rows_text
from kits.basics.golden_runner import run_golden
from kits.basics.places import TESTS
from kits.engines.heard import Event, hearing
from kits.engines.sandboxes import T0, TestBed


@pytest.mark.parametrize("path", sorted((TESTS / "golden" / "triggers").glob("*.txt")), ids=lambda path: path.stem)
def test_triggers_do_what_a_script_says(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside SQL a script has `advance SECONDS`, and `told`: what notifications said since the last time, in order."""
    heard = hearing(monkeypatch)
    with TestBed(now_ms=T0, config={"timezone": "UTC"}) as bed:

        def evaluate(text: str) -> str:
            word, *given = text.split()
            if word == "advance":
                bed.advance(float(*given))
                return "ok"
            return "\n".join(map(_event_text, heard.taken())) if word == "told" else _answer(bed, text)

        run_golden(path, evaluate)


def _answer(bed: TestBed, text: str) -> str:
    result = bed.execute(text)
    if result.table is None:
        return f"{result.affected} changed" if result.affected else "ok"
    names = [column.name for column in result.columns]
    return rows_text(names, zip(*(column.to_pylist() for column in result.table.columns), strict=True))


def _event_text(event: Event) -> str:
    kept = ("eventType", "tableName", "windowStart", "windowEnd", "result")
    return ", ".join(f"{name} {event[name]}" for name in kept if name in event)
