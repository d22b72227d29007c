"""The agg task of groups with STATE_TTL: lets those go that nothing has changed for so long.

A group goes by event time. Its last change is at the newest event time that its vnode had with the record of the log
that changed it; it goes once the time of the task, the least of its vnodes that aren't idle, is later by more than
STATE_TTL. Both follow from the log where there is one vnode, however the log is cut and whenever the task starts anew;
where there are several, a group may stay longer while one of them is behind. What comes for a group that has gone makes
it anew. Its result stays until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.tasks.compute.accumulators import Slots
from penstock.tasks.compute.partial_columns import PartialColumns
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.window.group_table import GroupTable
from penstock.tasks.window.group_times import GroupTimes
from penstock.tasks.window.window_agg import WindowAggTask

LET_GO = "let_go"
"""What a checkpoint calls how many groups STATE_TTL has let go."""

_SPARE_GROUPS = 4_096
"""So many numbers of groups that have gone are no reason to number the others anew."""


class ExpiringGroupsTask(WindowAggTask):
    """One agg task of a stream of groups that has STATE_TTL."""

    _table: GroupTable
    _table_kind = GroupTable

    def _set_up(self, inputs: int, deployment: StreamDeployment) -> None:
        super()._set_up(inputs, deployment)
        self._times = GroupTimes(self._plan.policies, self._store)
        self._let_go_count = 0

    def _merge_columns(self, partials: PartialColumns, operation: int, input: int) -> None:
        known = np.unique(self._table.groups.numbers(partials.groups))
        known = known[known >= 0]
        self._let_go(known[self._times.due(known, self._watermarks.current)])
        super()._merge_columns(partials, operation, input)
        self._times.note(self._merged[-1].groups, self._watermarks.known().get(input))

    def _let_go(self, groups: Slots) -> None:
        if len(groups):
            self._let_go_count += self._table.let_go(groups)
            self._times.forget(groups)

    @property
    def _table_bytes(self) -> int:
        return super()._table_bytes + self._times.memory_bytes

    @property
    def _forgotten_groups(self) -> int:
        return self._let_go_count

    # -- checkpoints -----------------------------------------------------------------------------------------

    def _state(self) -> Mapping[str, Any]:
        if not self._held.any:  # groups that are still to be shown
            self._let_go(self._times.all_due(self._watermarks.current))
            self._give_numbers_back()
        self._times.save()
        return {**super()._state(), LET_GO: self._let_go_count}

    def _give_numbers_back(self) -> None:
        """Numbers the groups anew once most have gone, whose ids and keys still take memory.

        Each agg task of groups has a sink task of its own, so that nobody else goes by their numbers.
        """
        staying = self._times.kept()
        if len(self._table.groups) - len(staying) > max(_SPARE_GROUPS, len(staying)):
            self._table.renumber(staying)
            self._times.renumber(staying)

    def _restore(self, meta: dict[str, Any]) -> None:
        super()._restore(meta)
        self._times.restore(len(self._table.groups))
        self._let_go_count = meta[LET_GO]
