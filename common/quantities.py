"""Durations and sizes as people write them: a number with a unit, `500us`, `3m`, `64KiB`, `1GiB`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

KIB, MIB, GIB, TIB, PIB = 1024, 1024**2, 1024**3, 1024**4, 1024**5
MINUTE, HOUR, DAY = 60, 3600, 86_400

DURATION_UNITS: dict[str, float] = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": MINUTE, "h": HOUR, "d": DAY}
SIZE_UNITS: dict[str, int] = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB, "PiB": PIB}


def read_duration(value: object) -> float:
    """Returns seconds; a bare number is one of them. Raises ValueError."""
    return float(_read_quantity(value, DURATION_UNITS, 'a number of seconds or text such as "2s"'))


def read_size(value: object) -> int:
    """Returns bytes; a bare number is one of them. Raises ValueError."""
    return int(_read_quantity(value, SIZE_UNITS, 'a number of bytes or text such as "64MiB"'))


def seconds_text(seconds: float) -> str:
    """Returns a duration in the largest unit that divides it: 180 is `3m`."""
    if not seconds:
        return "0s"
    for name, factor in reversed(DURATION_UNITS.items()):
        quotient = seconds / factor
        if round(quotient) >= 1 and abs(quotient - round(quotient)) < 1e-9 * quotient:
            return f"{round(quotient)}{name}"
    return f"{seconds / DURATION_UNITS['us']:.6f}".rstrip("0").rstrip(".") + "us"


def size_text(nbytes: int) -> str:
    """Returns a size in the largest unit that divides it: 62914560 is `60MiB`. `read_size` reads it back as it is."""
    if not nbytes:
        return "0B"
    name, factor = next((name, factor) for name, factor in reversed(SIZE_UNITS.items()) if nbytes % factor == 0)
    return f"{nbytes // factor}{name}"


def mebibytes(nbytes: float) -> str:
    """Returns a measured size for people: `95.0 MiB`."""
    return f"{nbytes / MIB:.1f} MiB"


def _read_quantity(value: object, units: Mapping[str, float], example: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(value))
    by_name = {name.lower(): factor for name, factor in units.items()}
    unit = match[2].lower() if match else ""
    if match is None or (unit and unit not in by_name):
        raise ValueError(f"expected {example} (units: {', '.join(units)})")
    # Exactly: in binary 100 * 1e-6 is a little less than 0.0001, which would be below a bound of 100us.
    return float(Decimal(match[1]) * Decimal(str(by_name.get(unit, 1))))
