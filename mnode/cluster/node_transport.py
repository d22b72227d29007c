"""The edge to other nodes: mutual TLS, one connection per direction, messages that may get lost but prove their sender.

Each node has a certificate of the cluster's own authority for the name `penstock-node-N`. Who connects only sends, who
is connected to only receives; so a network that works one way only is seen as such. What can't be sent in time is
dropped: the state machines send again what matters.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.common.clock import Clock
from penstock.common.errors import ConfigError, InvalidValueError
from penstock.common.logging import logger
from penstock.common.retries import Retries
from penstock.common.typed_json import TypedJson
from penstock.mnode.cluster.cluster_messages import (
    Ack,
    Append,
    CheckpointOffers,
    CheckpointsHeld,
    CopyAnswer,
    CopyRequest,
    LogMatch,
    LogState,
    NewerEpoch,
    NodeAlive,
    NodeHeartbeat,
    PieceAnswer,
    PieceRequest,
    WireMessage,
)

_log = logger(__name__)
_PROTOCOL = "penstock-cluster/1"
_NAME = "penstock-node-"


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """This node, where each node listens (host, port), PEM files of its certificate and key and of the authority.

    `queue_size_max`: bytes that wait for one node; `silence_s`: seconds without a byte after which a connection is
    closed; `look_s`: after which one that isn't used is looked at; `reach_s`: for a connection, and until the other
    machine has confirmed what it was sent; `connect_s`: for the handshake; `again_s`: between attempts to connect;
    `again_most_s`: at most until connections are taken again.
    """

    node: int
    addresses: Mapping[int, tuple[str, int]]
    certificate_file: str
    key_file: str
    authority_file: str
    queue_size_max: int = 32 << 20
    silence_s: float = 15.0
    look_s: float = 1.0
    reach_s: float = 1.5
    connect_s: float = 5.0
    again_s: float = 0.2
    again_most_s: float = 5.0


class NodeTransport:
    """Sends to all other nodes and receives from them. `receive` is called with the sender, one thread per sender."""

    def __init__(self, settings: TransportSettings, clock: Clock,
                 receive: Callable[[int, WireMessage], None]) -> None:
        """Raises ConfigError if the certificates can't be used."""
        self._settings = settings
        self._clock = clock
        self._receive = receive
        self._contexts = _contexts(settings)
        self._closed = threading.Event()
        self._peers = {node: PeerSender(settings, node, self._contexts[0], clock, self._closed)
                       for node in settings.addresses if node != settings.node}
        self._listener: socket.socket | None = None
        self._accepting = Retries("connections of other nodes can't be taken", clock, _log, settings.again_s,
                                  settings.again_most_s)
        self._accepted: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Listens, and connects to the others as they come. Raises ConfigError if the address can't be had."""
        host, port = self._settings.addresses[self._settings.node]
        try:
            self._listener = socket.create_server((host, port), backlog=16)
        except OSError as error:
            raise ConfigError(f"the cluster's address {host}:{port} of this node can't be opened: {error}") from error
        self._run(self._accept, "accept")
        for node, peer in self._peers.items():
            self._run(peer.run, f"to-{node}")

    @property
    def problem(self) -> str:
        """Why this node takes no connections; "" if it does."""
        return self._accepting.problem

    def problem_with(self, node: int) -> str:
        """Why a node can't be sent to; "" if it can."""
        return self._peers[node].problem

    def send(self, node: int, message: WireMessage) -> bool:
        """Sends a message; False if too much waits for that node already, and the message is dropped."""
        return self._peers[node].put(encode_message(message))

    def close(self) -> None:
        """Closes all connections, and waits for the threads."""
        self._closed.set()
        if self._listener is not None:
            _close(self._listener)
        for peer in self._peers.values():
            peer.wake()
        with self._lock:
            accepted = list(self._accepted)
        for connection in accepted:
            _close(connection)
        for thread in self._threads:
            thread.join(self._settings.connect_s + 1)

    def _run(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=f"penstock-cluster-{name}", daemon=True)
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        assert self._listener is not None
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._closed.is_set():  # such as too many open files
                    self._clock.wait(self._closed, self._accepting.failed(error))
                continue
            connection.settimeout(self._settings.connect_s)
            with self._lock:
                # Each node has one, and one more while it connects anew; nobody else is waited for.
                full = len(self._accepted) >= 2 * len(self._settings.addresses) + 4
                if not full:
                    self._accepted.add(connection)
            if full:
                _close(connection)
            else:
                self._run(lambda connection=connection: self._serve(connection), "from")  # type: ignore[misc]

    def _serve(self, connection: socket.socket) -> None:
        # Wrapping takes the descriptor away from the plain socket: it is the other one that can be closed from now on.
        try:
            secured = self._contexts[1].wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except OSError as error:  # it was closed meanwhile, by either side
            _log.info("a connection of another node ends: %s", error)
            with self._lock:
                self._accepted.discard(connection)
            _close(connection)
            return
        with self._lock:
            self._accepted.discard(connection)
            self._accepted.add(secured)
        try:
            with secured:
                secured.do_handshake()
                node = self._peer_of(secured)
                secured.settimeout(self._settings.silence_s)
                while not self._closed.is_set():
                    size, header = frame_lengths(_received(secured, LENGTHS_SIZE))
                    if size:
                        self._receive(node, decode_message(_received(secured, size), header))
        except (OSError, EOFError, InvalidValueError) as error:
            if not self._closed.is_set():
                _log.info("a connection of another node ends: %s", error)
        except Exception:  # noqa: BLE001  # it is told, and the other node connects again
            _log.exception("a connection of another node ends, by what it has said or by what came of that")
        finally:
            with self._lock:
                self._accepted.discard(secured)
            _close(secured)

    def _peer_of(self, secured: ssl.SSLSocket) -> int:
        """Returns the node whose certificate it is. Raises InvalidValueError for what is none of this cluster."""
        if secured.selected_alpn_protocol() != _PROTOCOL:
            raise InvalidValueError("it speaks another protocol")
        certificate: dict[str, Any] = dict(secured.getpeercert() or {})
        names = {name[1] for name in certificate.get("subjectAltName", ()) if name[0] == "DNS"}
        nodes = [node for node in self._peers if f"{_NAME}{node}" in names]
        if len(nodes) != 1:
            raise InvalidValueError(f"its certificate is for {sorted(map(str, names))}, no other node of this cluster")
        return nodes[0]


class PeerSender:
    """What waits for one node, and the connection there."""

    def __init__(self, settings: TransportSettings, node: int, context: ssl.SSLContext, clock: Clock,
                 closed: threading.Event) -> None:
        self._settings = settings
        self._node = node
        self._context = context
        self._clock = clock
        self._closed = closed
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._connecting = Retries(f"node {node} can't be sent to", clock, _log, settings.again_s, settings.again_s)
        self._paused = threading.Event()

    def put(self, frame: bytes) -> bool:
        """Adds what is to be sent; one frame may be larger than all that may wait, if nothing does."""
        with self._changed:
            if self._queue and self._size + len(frame) > self._settings.queue_size_max:
                return False
            self._queue.append(frame)
            self._size += len(frame)
            self._changed.notify()
            return True

    def wake(self) -> None:
        self._paused.set()
        with self._changed:
            self._changed.notify()

    def run(self) -> None:
        """Connects, sends, connects again, until all is closed."""
        while not self._closed.is_set():
            try:
                with self._connect() as connection:
                    self._send_all(connection)
            except Exception as error:  # noqa: BLE001  # it is told, and the thread goes on
                self._clock.wait(self._paused, self._connecting.failed(error))

    @property
    def problem(self) -> str:
        """Why the node can't be sent to; "" if it can."""
        return self._connecting.problem

    def _connect(self) -> ssl.SSLSocket:
        settings = self._settings
        plain = socket.create_connection(settings.addresses[self._node], settings.reach_s)
        try:
            plain.settimeout(settings.connect_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Else what is lost is sent again ever more seldom: for as long as it was lost nothing arrives afterwards.
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * settings.reach_s))
            connection = self._context.wrap_socket(plain, server_hostname=f"{_NAME}{self._node}")
        except BaseException:
            _close(plain)
            raise
        connection.settimeout(settings.silence_s)
        self._connecting.succeeded()
        return connection

    def _send_all(self, connection: ssl.SSLSocket) -> None:
        """Returns when all is closed, or the other node has closed the connection."""
        sent_at = self._clock.monotonic()
        while True:
            with self._changed:
                some = self._changed.wait_for(lambda: self._queue or self._closed.is_set(), self._settings.look_s)
                if self._closed.is_set():
                    return
                frame = self._queue.popleft() if some else b""
                self._size -= len(frame)
            # Standbys say nothing to each other until one of them is active; then the first word must arrive.
            if not frame:
                if _is_closed(connection):
                    return
                if self._clock.monotonic() - sent_at < self._settings.silence_s / 3:
                    continue
                frame = NOTHING
            connection.sendall(frame)
            sent_at = self._clock.monotonic()


def _is_closed(connection: ssl.SSLSocket) -> bool:
    """Tells whether the other node, which never sends anything here, has closed a connection."""
    timeout_s = connection.gettimeout()
    connection.settimeout(0)
    try:
        return not connection.recv(1)
    except ssl.SSLWantReadError:
        return False
    finally:
        connection.settimeout(timeout_s)


def _received(connection: ssl.SSLSocket, size: int) -> bytes:
    """Returns so many bytes. Raises EOFError if there are no more."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError("the other node has closed it")
        data += part
    return bytes(data)


def _contexts(settings: TransportSettings) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Returns what to connect with, and what to be connected to with."""
    contexts = (ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    try:
        for context in contexts:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(settings.authority_file)
            context.load_cert_chain(settings.certificate_file, settings.key_file)
            context.set_alpn_protocols([_PROTOCOL])
    except (OSError, ValueError) as error:
        raise ConfigError(f"the cluster's certificates can't be used: {error}") from error
    return contexts


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be closed already
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


#: Bytes of lengths before each frame, of a whole frame, and of its header, at most.
LENGTHS_SIZE = 8
FRAME_SIZE_MAX = 256 << 20
HEADER_SIZE_MAX = 4 << 20
_LENGTHS = struct.Struct(">II")
NOTHING = _LENGTHS.pack(0, 0)


@dataclass(frozen=True, slots=True)
class ClusterEnvelope:
    """One message, so that its class is told by a name of a closed set."""

    message: (LogState | LogMatch | Append | Ack | NodeHeartbeat | NodeAlive | NewerEpoch | CopyRequest | CopyAnswer
              | CheckpointOffers | CheckpointsHeld | PieceRequest | PieceAnswer)


_JSON = TypedJson(ClusterEnvelope)


def encode_message(message: WireMessage) -> bytes:
    """Returns a frame."""
    data = b""
    if isinstance(message, Append):
        data = message.chunk.data
        message = replace(message, chunk=replace(message.chunk, data=b""))
    elif isinstance(message, CopyAnswer | PieceAnswer):
        data, message = message.data, replace(message, data=b"")
    header = json.dumps(_JSON.encode(ClusterEnvelope(message)), separators=(",", ":")).encode()
    return b"".join((_LENGTHS.pack(len(header) + len(data), len(header)), header, data))


def frame_lengths(lengths: bytes) -> tuple[int, int]:
    """Returns the size of what follows, and of the header in that. Raises InvalidValueError if it is too much."""
    size, header = _LENGTHS.unpack(lengths)
    if size > FRAME_SIZE_MAX or header > min(size, HEADER_SIZE_MAX):
        raise InvalidValueError(f"a message of {size} bytes with a header of {header} is none of a cluster's node")
    return size, header


def decode_message(body: bytes, header_size: int) -> WireMessage:
    """Returns the message of a frame, whose lengths were checked. Raises InvalidValueError for what isn't one."""
    try:
        message = _JSON.decode(json.loads(body[:header_size])).message
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"this is no message of a cluster's node: {error}") from error
    if isinstance(message, Append):
        return replace(message, chunk=replace(message.chunk, data=body[header_size:]))
    if isinstance(message, CopyAnswer | PieceAnswer):
        return replace(message, data=body[header_size:])
    if len(body) > header_size:
        raise InvalidValueError("a message without records has bytes behind it")
    return message
