"""Durations as text for people."""

from __future__ import annotations

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"), (0.001, "ms"), (1e-6, "us"), (1e-9, "ns"))


def duration_text(units: int, units_per_second: int) -> str:
    """Returns a duration in the largest unit that it has one of, with two digits behind the point at most."""
    seconds = units / units_per_second
    if not units:
        return "0s"
    factor, name = next(((factor, name) for factor, name in _UNITS if seconds >= factor), _UNITS[-1])
    return f"{seconds / factor:.2f}".rstrip("0").rstrip(".") + name
