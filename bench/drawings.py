"""Draws figures: a row for each thing measured, and in it a dot for each engine, on a logarithmic axis; as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

_ROW, _LEFT, _RIGHT, _WIDTH = 22, 110, 30, 760
_COLOURS = ("#1b6ca8", "#d1495b", "#edae49", "#66a182", "#8d6a9f", "#6b705c")


def dots(title: str, rows: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> str:
    """Returns the drawing. `rows`: the values of each row by name, all above zero; those of `names` are drawn.

    Raises ValueError if there is nothing to draw.
    """
    names = [name for name in names if any(name in row for row in rows.values())]
    values = [row[name] for row in rows.values() for name in names if name in row]
    if not values:
        raise ValueError(f"{title}: there are no values")
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    top = 62
    height = top + _ROW * len(rows) + 30

    def x(value: float) -> float:
        return round(_LEFT + (math.log10(value) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT), 1)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
             f'font-size="12">', f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
             f'<text x="10" y="20" font-size="14" font-weight="bold">{escape(title)}</text>', *_legend(names)]
    for power in range(low, high + 1):
        at = x(10.0**power)
        parts += [f'<line x1="{at}" x2="{at}" y1="{top - 8}" y2="{height - 26}" stroke="#d0d0d0"/>',
                  f'<text x="{at}" y="{height - 10}" text-anchor="middle">{_power(power)}</text>']
    for place, (name, row) in enumerate(rows.items()):
        y = top + _ROW * place + _ROW // 2
        parts.append(f'<text x="{_LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#eeeeee"/>')
        parts += [f'<circle cx="{x(row[each])}" cy="{y}" r="5" fill="{_COLOURS[at % len(_COLOURS)]}">'
                  f"<title>{escape(each)}: {row[each]:,.4g}</title></circle>"
                  for at, each in enumerate(names) if each in row]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(names: Sequence[str]) -> Iterator[str]:
    at = 10
    for place, name in enumerate(names):
        yield f'<circle cx="{at + 6}" cy="38" r="5" fill="{_COLOURS[place % len(_COLOURS)]}"/>'
        yield f'<text x="{at + 16}" y="42">{escape(name)}</text>'
        at += 34 + 7 * len(name)


def _power(power: int) -> str:
    for least, unit in ((6, " M"), (3, " k")):
        if power >= least:
            return f"{10 ** (power - least)}{unit}"
    return f"{10.0**power:g}"
