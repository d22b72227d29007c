"""Names of columns that rows of results have beside those of their table; no table may have such a column."""

from __future__ import annotations

CHILD = "_child"
"""The child table: its name, or its place among those that a task has said."""
OPERATION = "_op"
"""Whether a row is to be written or deleted."""
OFFSET = "_offset"
"""Where the message that an ingested row comes from stood."""
KEPT = "_kept"
"""Which columns of a row keep the values that they have: their places in the table, as texts with commas."""
PROBLEM = "_problem"
"""Which tag of a child table takes no value that it would have."""
