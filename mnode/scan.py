"""Base tables as relations that DuckDB reads: rows of vnode snapshots, with names and tags of child tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.mnode.catalog import Catalog
from penstock.mnode.lookup import TABLE_MISSING, require_database
from penstock.mnode.storage import Storage
from penstock.planner.plan import Scan
from penstock.planner.scalar_sql import quote_name
from penstock.sql.schema import ChildTable, Column, Table
from penstock.sql.types import Kind
from penstock.common.errors import NotFoundError

SMALL_ROWS = 200_000
"""Up to so many rows are read by NumPy and handed over as Arrow; for more, DuckDB reads the Parquet parts itself."""
