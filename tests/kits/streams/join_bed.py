"""What tests of joins in streams share: a sandbox that is taken through steps, and results as they can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kits.engines.sandboxes import TestBed

#: the time of rows that make all others final
FAR = 100_000
Row = tuple[Any, ...]


class JoinBed(TestBed):
    """A sandbox whose streams don't work before they are told to."""

    def hand(self, text: str) -> None:
        """Executes a statement; the streams don't work yet."""
        self.engine.execute(text, self.session)

    def rest(self, kind: str) -> None:
        """Carries out a step that writes nothing."""
        match kind:
            case "run":
                self.run()
            case "idle":
                self.run()
                self.advance(5)
            case "checkpoint":
                self.checkpoint()
            case "kill":
                self.kill()

    def results(self) -> list[Row]:
        """What the stream wrote into d.o: the name of the child table, time and values."""
        table = self.engine.catalog.table("d", "o")
        assert table is not None
        names = ", ".join(f"`{column.name}`" for column in table.columns)
        return [(str(row[0]), *row[1:]) for row in self.rows(f"select tbname, {names} from d.o")]


def greatest(rows: Iterable[Row]) -> list[Row]:
    """Returns of rows with the same group and time the greatest, NULL being least."""
    found: dict[Row, Row] = {}
    for row in rows:
        known = found.get(row[:2])
        if known is None or _order(row) > _order(known):
            found[row[:2]] = row
    return list(found.values())


def _order(row: Row) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in row]


def near(rows: Iterable[Row]) -> list[Row]:
    """Returns rows but those of the far future, in an order of their own; values as they are in both engines."""
    plain = [tuple(int(value) if isinstance(value, float) else value for value in row) for row in rows]
    return sorted((row for row in plain if row[1] is not None and row[1] < FAR - 100), key=repr)
