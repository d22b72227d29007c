"""Stream cuts of databases: the one of now, and holds that keep rows readable as of a cut."""

from __future__ import annotations

import itertools

from penstock.common.errors import InvalidStatementError
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.sql.cuts import Cut, cut_text, parse_cut

READER_PIN_PREFIX = "reading-"


class Cuts:
    """Takes cuts. A hold lives as long as the engine at most: a start lets go of all."""

    def __init__(self, catalog: Catalog, storage: Storage) -> None:
        self._catalog = catalog
        self._storage = storage
        self._numbers = itertools.count(1)

    def now(self, database: str) -> Cut:
        """Returns a cut with all that is acknowledged by the vnodes of the database."""
        return tuple(self._storage.whole_writes.cut(require_database(database, self._catalog).vgroup_ids).items())

    def hold(self, database: str, since: str | None) -> tuple[str, str, str]:
        """Returns (first cut, cut of now, name of a hold) such that all rows of the latter stay readable.

        `since` None: the first cut is before all rows. Raises InvalidStatementError for a cut of another database or
        one that is later than now.
        """
        found = require_database(database, self._catalog)
        owner = f"{READER_PIN_PREFIX}{next(self._numbers)}"
        for vgroup_id, version in self.now(database):
            # What is acknowledged until the cut is taken must be readable then: the pin comes first.
            self._storage.vnode(vgroup_id).set_pin(owner, version)
        last = self.now(database)
        first = tuple((vgroup_id, 0) for vgroup_id in found.vgroup_ids) if since is None else parse_cut(since)
        try:
            check_cuts(found.vgroup_ids, first, last)
        except InvalidStatementError:
            self.release(database, owner)
            raise
        for vgroup_id, version in last:
            self._storage.vnode(vgroup_id).set_pin(owner, version)
        return cut_text(first), cut_text(last), owner

    def release(self, database: str, owner: str) -> None:
        """Lets go of a hold; a database that was dropped meanwhile is no error."""
        found = self._catalog.database(database)
        for vgroup_id in found.vgroup_ids if found is not None else ():
            self._storage.vnode(vgroup_id).release_pin(owner)


def check_cuts(vgroup_ids: tuple[int, ...], first: Cut, last: Cut) -> None:
    """Raises InvalidStatementError unless both are cuts of a database with these vnodes, in this order."""
    for cut in (first, last):
        if {vgroup_id for vgroup_id, _ in cut} != set(vgroup_ids):
            raise InvalidStatementError(
                f"'{cut_text(cut)}' is no cut of this database: its vnodes are {', '.join(map(str, vgroup_ids))}",
                hint="SHOW CUT gives one")
    if any(low > high for (_, low), (_, high) in zip(sorted(first), sorted(last), strict=True)):
        raise InvalidStatementError(f"the cut '{cut_text(first)}' is behind '{cut_text(last)}'")
