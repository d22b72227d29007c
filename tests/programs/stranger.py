"""What another account of this machine gets from a running engine: `python tests/programs/stranger.py PID DATA`.

To be run as root.

Lists the ports and sockets that the process and its children listen on, and the files below DATA, as root. Then it
becomes the account `nobody` and tries each of them. Prints a JSON line for each: what was tried, and what came of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil

_TIMEOUT_S = 5.0
_LIST_ACTIONS = "/arrow.flight.protocol.FlightService/ListActions"
NOTHING = "nothing"


@dataclass(frozen=True)
class Finding:
    """`got` is NOTHING where the account was kept out."""

    what: str
    owner: str
    tried: str
    got: str


def listening(pid: int) -> list[tuple[str, str | tuple[str, int]]]:
    """Returns name of the process and address of each socket that a process and its children listen on."""
    found = []
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        for one in process.net_connections("all"):
            if one.status == psutil.CONN_LISTEN:
                host = "127.0.0.1" if one.laddr.ip in ("0.0.0.0", "::", "") else one.laddr.ip
                found.append((process.name(), (host.removeprefix("::ffff:"), one.laddr.port)))
            elif one.family == socket.AF_UNIX and str(one.laddr).startswith("/") and not one.raddr:
                found.append((process.name(), str(one.laddr)))
    return sorted(set(found), key=str)


def try_socket(owner: str, address: str | tuple[str, int]) -> Iterator[Finding]:
    """Says hello in three ways: not at all, by HTTP, by Flight."""
    what = address if isinstance(address, str) else f"{address[0]}:{address[1]}"
    said = _said(address, b"")
    if said is None:
        yield Finding(what, owner, "connect", NOTHING)
        return
    yield Finding(what, owner, "connect", f"connected, {len(said)} bytes unasked" if said else "connected")
    http = (_said(address, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") or b"").split(b"\r\n")[0]
    status = http.split()[1:2]
    answered = http.startswith(b"HTTP/") and status not in ([b"401"], [b"403"], [b"404"])
    yield Finding(what, owner, "GET /", f"HTTP {b''.join(status).decode()}" if answered else NOTHING)
    target = f"unix:{address}" if isinstance(address, str) else what
    with grpc.insecure_channel(target) as channel:
        try:
            actions = list(channel.unary_stream(_LIST_ACTIONS)(b"", timeout=_TIMEOUT_S))
            yield Finding(what, owner, "Flight ListActions", f"{len(actions)} actions, let in")
        except grpc.RpcError:
            yield Finding(what, owner, "Flight ListActions", NOTHING)


def _said(address: str | tuple[str, int], hello: bytes) -> bytes | None:
    """Returns what is said to somebody who connects and says `hello`; None if nobody may connect."""
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else
                       socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as stream:
        stream.settimeout(_TIMEOUT_S if hello else 1.0)
        try:
            stream.connect(address)
        except OSError:
            return None
        try:
            stream.sendall(hello)
            return stream.recv(4096)
        except OSError:
            return b""


def try_path(path: Path) -> Iterator[Finding]:
    """Reads and writes a file, or lists a folder and makes a file there."""
    folder = path.is_dir() if os.access(path.parent, os.X_OK) else False
    for tried, flags in (("list" if folder else "read", os.O_RDONLY), ("write", os.O_WRONLY)):
        if folder and tried == "write":
            got = "may make files" if os.access(path, os.W_OK | os.X_OK) else NOTHING
        else:
            try:
                descriptor = os.open(path, flags | os.O_NONBLOCK)
                # The files of other people's processes open, but don't tell anything.
                got = "opened" if flags == os.O_WRONLY or os.read(descriptor, 1) else NOTHING
                os.close(descriptor)
            except OSError:
                got = NOTHING
        yield Finding(str(path), "", tried, got)


def _load_all() -> None:
    """Has Python load what trying needs: from where it lies, the account may not be able to."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens
        list(try_socket("", closed.getsockname()))
        target = f"127.0.0.1:{closed.getsockname()[1]}"
        with grpc.insecure_channel(target) as channel, contextlib.suppress(grpc.RpcError):
            list(channel.unary_stream(_LIST_ACTIONS)(b"", timeout=_TIMEOUT_S))


def attempt(pid: int, data: Path, account: str) -> list[Finding]:
    """Returns all findings of an account. This process belongs to the account from then on."""
    sockets = listening(pid)
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    inside = [Path("/proc") / str(process.pid) / name for process in processes for name in ("environ", "mem", "maps")]
    paths = [data, *sorted(data.rglob("*")), *inside]
    entry = pwd.getpwnam(account)
    _load_all()
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    found = [finding for owner, address in sockets for finding in try_socket(owner, address)]
    return found + [finding for path in paths for finding in try_path(path)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pid", type=int)
    parser.add_argument("data", type=Path)
    parser.add_argument("--account", default="nobody")
    options = parser.parse_args(arguments)
    for finding in attempt(options.pid, options.data.resolve(), options.account):
        told: dict[str, Any] = asdict(finding)
        print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
