"""Child tables that a statement creates many of, from its text to what is created in a few steps.

What a statement does is defined by `TableStatements`: nothing that it would refuse, or do otherwise, is done here.
"""

from __future__ import annotations

from penstock.mnode.catalog.catalog import Catalog
from penstock.planner.bind.binder import known_table
from penstock.sql.rows.constants import Constants
from penstock.sql.rows.row_pattern import row_pattern
from penstock.sql.schema import Session, Table, TagValue, can_name_child
from penstock.sql.tree.statements import PlainChildren

NewChildren = list[tuple[str, tuple[TagValue, ...]]]


def plain_children(plain: PlainChildren, session: Session, catalog: Catalog) -> tuple[Table, NewChildren] | None:
    """Returns the super table, and the names and tag values of the child tables to be created, none of which exists.

    None if the statement is to be executed the whole way, which then says what is wrong with it, if anything is.
    """
    database = catalog.user_database(plain.child.database or session.database or "")
    parent = known_table(plain.using, catalog, session)
    if database is None or parent is None or parent.kind != "super" or parent.database != database.name:
        return None
    if catalog.streams.maker_of(parent) is not None:
        return None
    by_name = {tag.name: tag for tag in parent.tags}
    tags = parent.tags if plain.tag_names is None else tuple(
        by_name[name] for name in plain.tag_names if name in by_name)
    pattern = row_pattern(tags, parent.tags)
    names = set(plain.names)
    if pattern is None or len(names) < len(plain.names) or (plain.tag_names and len(plain.tag_names) > len(tags)):
        return None
    taken = catalog.taken_below(parent, names)
    if (taken and not plain.if_not_exists) or not all(map(can_name_child, names)):
        return None
    constants = Constants(database.precision, session.time_zone, session.now_ms)
    children: NewChildren = []
    for name, place in zip(plain.names, plain.places, strict=True):
        # Behind its tag values comes the name of the next one: there is one row of values only.
        read = pattern.read(plain.text, place, 1, constants)
        if read is None:
            return None
        if name not in taken:
            children.append((name, tuple(read[0][0])))
    return parent, children
