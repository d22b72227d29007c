"""Under which epoch each record of a log was written, and where two logs part. Pure.

An epoch is one tenure of one active node; only one node ever has it. A log notes (epoch, first version) before the
first record of an epoch is in it. So two records of one version and one epoch are the same, and so is all before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.common.errors import InternalError

#: What a log has that was written before there was a cluster.
NO_EPOCH = 0


@dataclass(frozen=True, slots=True, order=True)
class EpochStart:
    """From version `first` on, until the next of the list, records were written under `epoch`."""

    epoch: int
    first: int


Epochs = tuple[EpochStart, ...]


def added(epochs: Epochs, start: EpochStart) -> Epochs:
    """Returns the list with one more epoch; one that has no record yet gives way. InternalError if it is old."""
    if epochs and (start.epoch <= epochs[-1].epoch or start.first < epochs[-1].first):
        raise InternalError(f"{start} cannot follow {epochs[-1]}")
    return (*(one for one in epochs if one.first < start.first), start)


def cut_to(epochs: Epochs, version: int) -> Epochs:
    """Returns the list of a log that ends at `version` now."""
    return tuple(one for one in epochs if one.first <= version)


def epoch_of(epochs: Epochs, version: int) -> int:
    """Returns the epoch of a record; NO_EPOCH if it is older than the list."""
    return max((one.epoch for one in epochs if one.first <= version), default=NO_EPOCH)


def start_of(epochs: Epochs, version: int) -> EpochStart:
    """Returns the epoch of a record, and where it begins."""
    return max((one for one in epochs if one.first <= version), default=EpochStart(NO_EPOCH, 1))


def common_end(one: Epochs, one_end: int, other: Epochs, other_end: int) -> int:
    """Returns the last version up to which two logs are the same."""
    end = min(one_end, other_end)
    for first, epoch, last in _shared_runs(one, other, end):
        if epoch is None:
            return first - 1
        end = last
    return end


def _shared_runs(one: Epochs, other: Epochs, end: int) -> Iterator[tuple[int, int | None, int]]:
    """Yields runs of versions up to `end` with the epoch that both logs have for them; None: they differ."""
    firsts = sorted({1, *_firsts(one, end), *_firsts(other, end)})
    for first, following in zip(firsts, [*firsts[1:], end + 1], strict=True):
        if first > end:
            return
        epoch = epoch_of(one, first)
        yield first, epoch if epoch == epoch_of(other, first) else None, following - 1


def _firsts(epochs: Sequence[EpochStart], end: int) -> Iterable[int]:
    return (start.first for start in epochs if start.first <= end)
