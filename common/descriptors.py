"""How many descriptors this process may have, and whether they are enough for what it lets others open."""

from __future__ import annotations

import resource

_LIMIT_MAX = 1 << 20
_OWN = 1024
"""For files, logs, Spark and the connections of workers."""


def raise_limit() -> int:
    """Lets this process, and those that it starts, have as many descriptors as the system allows; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, _LIMIT_MAX)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft if soft != resource.RLIM_INFINITY else _LIMIT_MAX
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def shortage(limit: int, connections: int) -> str | None:
    """Returns what to say if `connections` of clients could leave the engine without descriptors, else None."""
    if limit >= connections + _OWN:
        return None
    return (f"clients may have {connections} connections and the engine needs {_OWN} descriptors, but the process may "
            f"have {limit} in all: raise the limit (ulimit -n, LimitNOFILE) or lower connectionsMax")
