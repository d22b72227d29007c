"""`penstock views`: brings the views of a data directory up to date and tells how to use them."""

from __future__ import annotations

from pathlib import Path

from penstock.common.config import Config
from penstock.common.errors import DataDirectoryInUseError, NotFoundError
from penstock.common.paths import DataPaths
from penstock.shell.api.dbapi import connect

_HOW_TO = """\
The views of {root} are current; an engine that writes there keeps them so. Their timestamps are UTC.

  DuckDB:  ATTACH '{duckdb}' AS penstock (READ_ONLY); FROM penstock.<database>.<table>;
  or       .read {sql}
  Python:  import penstock; penstock.duckdb('{root}').sql('FROM <database>.<table>')
"""


def refresh_views(directory: Path, config: Config) -> str:
    """Returns how to use the views of `directory`, after writing them unless an engine that is running does.

    Raises `NotFoundError` if there is no data directory.
    """
    paths = DataPaths(directory.resolve())
    if not paths.format.exists():
        raise NotFoundError(f"{directory} is not a data directory", hint="name one with --data")
    try:
        connect(paths.root, config).close()
    except DataDirectoryInUseError:
        if not paths.views_duckdb.exists():
            raise
    return _HOW_TO.format(root=paths.root, duckdb=paths.views_duckdb, sql=paths.views_sql)
