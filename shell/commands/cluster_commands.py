"""`penstock switchover` and `penstock promote`: who of a cluster's nodes is active, changed by a person."""

from __future__ import annotations

import sys

from penstock.shell.api.dbapi import Connection


def run_switchover(connection: Connection, node: int) -> int:
    """Has the node that answers hand over to another one. Raises PenstockErrors if it can't."""
    with connection, connection.cursor() as cursor:
        cursor.execute(f"SWITCHOVER TO {node}")
    sys.stdout.write(f"node {node} is to become the active one; SHOW CLUSTER there tells when it is\n")
    return 0


def run_promote(connection: Connection) -> int:
    """Has the node that answers become active, whatever it lacks. Raises PenstockErrors if it can't."""
    with connection, connection.cursor() as cursor:
        cursor.execute("PROMOTE")
    sys.stdout.write("the node tries for 10 s to become the active one; SHOW CLUSTER tells whether it is\n")
    return 0
