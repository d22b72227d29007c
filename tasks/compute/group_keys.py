"""The keys of groups by their numbers, which count up as groups come."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.planner.task_plans.stream_plan import Field
from penstock.tasks.compute.id_table import Numbers
from penstock.tasks.protocol.block_schema import fields_schema


class GroupKeys:
    """Keeps keys in parts as they come: mostly it is the newest groups whose keys nobody knows yet."""

    def __init__(self, keys: Sequence[Field]) -> None:
        self._types = [field.type for field in fields_schema(keys)]
        self._parts: list[Sequence[pa.Array]] = []
        self._firsts: list[int] = []  # the first group of each part
        self._count = 0

    def add(self, keys: Sequence[pa.Array], count: int) -> None:
        """Takes in the keys of so many new groups, column by column."""
        if count:
            self._firsts.append(self._count)
            self._parts.append(keys)
            self._count += count

    def take(self, groups: Numbers) -> list[pa.Array]:
        """Returns the keys of groups, column by column."""
        if not self._parts:
            return [pa.array([], kind) for kind in self._types]
        if len(self._parts) > 1 and (not len(groups) or int(groups.min()) < self._firsts[-1]):
            self._parts = [[pa.concat_arrays(parts) for parts in zip(*self._parts, strict=True)]]
            self._firsts = [0]
        places = pa.array(groups - self._firsts[-1])
        return [key.take(places) for key in self._parts[-1]]
