"""What a vnode has got from ingests: how far it is in each partition, and which rows of a delivery it has already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock.vnode.store.sorted_keys import I64
from penstock.wal.record import IngestOrigin

Partition = tuple[int, str]
"""An ingest and one of the partitions that it reads."""

Place = tuple[str, int]
"""A segment of a partition and the next offset in it; places of one partition are ordered as tuples are."""

Places = Mapping[Partition, Place]


@dataclass(frozen=True, slots=True)
class IngestDelivery:
    """Where the rows of one write come from: one segment of one partition, `offsets` by row.

    Rows of one message have one offset, and all of them that are for a vnode come in one write.
    """

    ingest: int
    partition: str
    segment: str
    offsets: I64

    @property
    def key(self) -> Partition:
        return self.ingest, self.partition

    def is_new_to(self, places: Places) -> bool:
        """Whether all rows are new to who is at these places."""
        place = places.get(self.key)
        return place is None or (self.segment, int(self.offsets.min())) >= place

    def cut(self, batch: pa.RecordBatch, places: Places) -> tuple[pa.RecordBatch, IngestDelivery]:
        """Returns what is new of the delivery, and of the batch that holds its rows."""
        segment, offset = places.get(self.key, ("", 0))
        if self.segment != segment:
            new = np.full(len(self.offsets), self.segment > segment)
        else:
            new = self.offsets >= offset
        return batch.filter(pa.array(new)), replace(self, offsets=self.offsets[new])

    @property
    def origin(self) -> IngestOrigin:
        """Where its rows, of which there are some, come from, for their record in the log."""
        return IngestOrigin(self.ingest, self.partition, self.segment, int(self.offsets.max()) + 1)


def place_of(origin: IngestOrigin) -> tuple[Partition, Place]:
    """Returns what a record of the log says about how far its vnode is."""
    return (origin.ingest, origin.partition), (origin.segment, origin.next_offset)
