"""Where a table lives: a stable hash of its full name, the same for ever and on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat

import google_crc32c
import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Share:
    """One vgroup's part of all tables: those whose hash leaves `residue` when divided by `modulus`."""

    modulus: int
    residue: int

    @property
    def halves(self) -> tuple[Share, Share]:
        """The two parts that this one consists of, about equally large."""
        return Share(2 * self.modulus, self.residue), Share(2 * self.modulus, self.residue + self.modulus)


def place(full_name: str, places: int) -> int:
    """Returns the index of the place, of `places` many, that the table `database.table` belongs to."""
    return _hash(full_name) % places


def places(database: str, tables: Sequence[str], count: int) -> npt.NDArray[np.int64]:
    """Returns what `place` does for each of these tables of a database; of many it is several times as fast."""
    return np.fromiter(_hashes(database, tables), np.int64, len(tables)) % count


def even_shares(places: int) -> tuple[Share, ...]:
    """Returns the shares with which every table is where `place` puts it."""
    return tuple(Share(places, residue) for residue in range(places))


def owner(full_name: str, shares: tuple[Share, ...]) -> int:
    """Returns which of the shares, each hash being in one of them, the table `database.table` belongs to."""
    return _owner_of(_hash(full_name), shares)


def owners(database: str, tables: Iterable[str], shares: tuple[Share, ...]) -> list[int]:
    """Returns what `owner` does for each of these tables of a database."""
    return [_owner_of(digest, shares) for digest in _hashes(database, tables)]


@dataclass(frozen=True, slots=True)
class Cut:
    """Shares after some were halved. Those from before keep their places; `parents[i]`: whose tables share i has."""

    shares: tuple[Share, ...]
    parents: tuple[int, ...]


def cut_one(shares: Sequence[Share], which: int) -> Cut:
    """Halves one share: the first half stays in its place, the second gets a new one at the end."""
    return _halved(Cut(tuple(shares), tuple(range(len(shares)))), which)


def cut_to(shares: Sequence[Share], places: int) -> Cut:
    """Halves the largest share, the first of equals, until there are so many."""
    cut = Cut(tuple(shares), tuple(range(len(shares))))
    while len(cut.shares) < places:
        cut = _halved(cut, min(range(len(cut.shares)), key=lambda which: cut.shares[which].modulus))
    return cut


def _halved(cut: Cut, which: int) -> Cut:
    stays, goes = cut.shares[which].halves
    shares = (*cut.shares[:which], stays, *cut.shares[which + 1 :], goes)
    return Cut(shares, (*cut.parents, cut.parents[which]))


def _hash(full_name: str) -> int:
    digest: int = google_crc32c.value(full_name.encode())
    return digest


def _hashes(database: str, tables: Iterable[str]) -> Iterable[int]:
    begun = _hash(f"{database}.")
    return map(google_crc32c.extend, repeat(begun), map(str.encode, tables))


def _owner_of(digest: int, shares: tuple[Share, ...]) -> int:
    moduli, found = _indexed(shares)
    return next(place for modulus in moduli if (place := found.get((modulus, digest % modulus))) is not None)


@lru_cache(maxsize=256)
def _indexed(shares: tuple[Share, ...]) -> tuple[tuple[int, ...], dict[tuple[int, int], int]]:
    places = {(share.modulus, share.residue): place for place, share in enumerate(shares)}
    return tuple(sorted({share.modulus for share in shares})), places
