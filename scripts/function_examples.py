"""One example per function for the reference, over a small table `m`; `write_docs` runs them and prints the answers."""

from __future__ import annotations

from penstock.planner.functions.table import FUNCTIONS

SETUP = (
    "CREATE DATABASE docs KEEP 36500 VGROUPS 1",
    "USE docs",
    "CREATE TABLE m (ts TIMESTAMP, v INT, s VARCHAR(8))",
    "INSERT INTO m VALUES ('2024-01-01 00:00:00', 1, 'a') ('2024-01-01 00:01:00', 3, 'b') "
    "('2024-01-01 00:02:00', NULL, 'b') ('2024-01-01 00:03:00', 6, NULL)",
)

EXAMPLES = {spec.name: spec.example for spec in FUNCTIONS.values()}
