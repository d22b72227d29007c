"""What somebody who misspelt a name has probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def alternatives(words: Sequence[str]) -> str:
    """Returns `A, B or C`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Returns a hint that names what `name` is a misspelling of, or None if it is of nothing that is known."""
    found = closest(name, known)
    return None if found is None else f"did you mean {found}?"


def closest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that `name` is a misspelling of, or None.

    One slip is allowed in a name of three letters, and two from seven on: a letter that is left out, added, wrong, or
    swapped with the next one. Case doesn't count.
    """
    written = name.lower()
    allowed = min((len(written) + 1) // 4, 2)
    best: str | None = None
    for candidate in known:
        slips = _slips(written, candidate.lower(), allowed)
        if slips <= allowed:
            best, allowed = candidate, slips - 1
    return best


def _slips(written: str, meant: str, most: int) -> int:
    """Returns how many slips make one text of the other (optimal string alignment), or anything above `most`."""
    if abs(len(written) - len(meant)) > most:
        return most + 1
    before: list[int] = []
    last = list(range(len(meant) + 1))
    for row, letter in enumerate(written, 1):
        now = [row]
        for place, other in enumerate(meant, 1):
            slips = min(now[-1] + 1, last[place] + 1, last[place - 1] + (letter != other))
            if row > 1 and place > 1 and letter == meant[place - 2] and written[row - 2] == other:
                slips = min(slips, before[place - 2] + 1)
            now.append(slips)
        if min(now) > most:
            return most + 1
        before, last = last, now
    return last[-1]
