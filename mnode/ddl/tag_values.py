"""Tag values of child tables as statements give them: matched to the tags, converted, checked."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.mnode.catalog.name_lookup import require_column
from penstock.sql.rows.values import read_value
from penstock.sql.schema import Session, Table, TagValue
from penstock.sql.types import Precision


def read_tags(
    parent: Table,
    names: tuple[str, ...] | None,
    values: Sequence[exp.Expression],
    precision: Precision,
    session: Session,
) -> tuple[TagValue, ...]:
    """Returns one value per tag of the super table, in their order; tags that are not named are NULL.

    Raises `InvalidStatementError` for a wrong number of values, `NotFoundError` for an unknown tag,
    `InvalidValueError` for a value that doesn't fit.
    """
    tags = parent.tags if names is None else tuple(require_column(name, parent.tags, parent, "tag") for name in names)
    if len(tags) != len(values):
        raise InvalidStatementError(
            f"{len(values)} tag values are given for {len(tags)} tags of {parent.name}", code=0x263F)
    given = {
        tag.name: read_value(value, tag, precision=precision, time_zone=session.time_zone, now_ms=session.now_ms)
        for tag, value in zip(tags, values, strict=True)
    }
    return tuple(given.get(tag.name) for tag in parent.tags)
