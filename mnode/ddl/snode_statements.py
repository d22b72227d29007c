"""CREATE and DROP SNODE."""

from __future__ import annotations

from penstock.common.clock import Clock
from penstock.common.errors import NotFoundError
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.sql.tree.statements import CreateSnode, DropSnode


class SnodeStatements:
    """Registers the places for agg tasks that are not vnodes."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock

    def create(self, statement: CreateSnode) -> Result:
        """Registers the snode; streams that start from now on place agg tasks on it (`tasks.build.nodes_of`)."""
        _check_dnode(statement.dnode_id)
        self._catalog.snodes.create(statement.dnode_id, self._clock.now_ms())
        return Result()

    def drop(self, statement: DropSnode) -> Result:
        _check_dnode(statement.dnode_id)
        self._catalog.snodes.drop(statement.dnode_id)
        return Result()


def _check_dnode(dnode_id: int) -> None:
    if dnode_id != 1:
        raise NotFoundError(f"dnode {dnode_id} does not exist", hint="an engine has dnode 1 only")
