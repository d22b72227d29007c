"""The order in which a client of PostgreSQL's protocol may send messages, as a state machine: bytes in, messages out.

It knows no socket and executes nothing: whoever has the connection gives it what comes, takes message by message, and
tells it what became of a login, of an error, of COPY.
"""

from __future__ import annotations

from enum import Enum, auto

from penstock.shell.postgres.frontend import (
    STARTUP_MAX,
    CopyData,
    CopyDone,
    CopyFail,
    Encryption,
    First,
    Flush,
    Message,
    Password,
    ProtocolError,
    Startup,
    Sync,
    Terminate,
    read_first,
    read_message,
)

_ALWAYS_COUNT = (Terminate, Encryption)
_OF_COPY = (CopyData, CopyDone, CopyFail)
_NO_STATEMENTS = (Password, *_OF_COPY)
_HEAD_BYTES = 5
_LENGTH_BYTES = 4


class Phase(Enum):
    """What the client may send next."""

    FIRST = auto()
    HANDSHAKE = auto()
    LOGIN = auto()
    STATEMENTS = auto()
    SKIPPING = auto()
    COPY = auto()


_BEFORE_STATEMENTS = (Phase.HANDSHAKE, Phase.LOGIN)


class Conversation:
    """One client. Holds what has come and wasn't taken: less than one message of the allowed size, and one reading."""

    def __init__(self, message_max: int) -> None:
        """`message_max`: bytes that a message may have once the client has logged in."""
        self._message_max = message_max
        self._buffer = bytearray()
        self._at = 0
        self.phase = Phase.FIRST
        #: whether COPY was begun by a simple query, after which no Sync comes
        self._simple_copy = False

    def receive(self, data: bytes) -> None:
        """Takes bytes in."""
        if self._at:
            del self._buffer[:self._at]
            self._at = 0
        self._buffer += data

    def next(self) -> First | Message | None:
        """Returns the next message that means something now; None: more bytes are needed. Raises ProtocolError."""
        while True:
            message = self._first() if self.phase is Phase.FIRST else self._typed()
            if message is None or self._counts(message):
                return message

    @property
    def is_all_taken(self) -> bool:
        """Whether nothing has come that wasn't taken."""
        return self._at == len(self._buffer)

    # --- what became of messages --------------------------------------------------------------------------------

    def encrypted(self) -> None:
        """TLS was agreed on. Raises ProtocolError if something has come in clear that would be taken for encrypted."""
        if len(self._buffer) > self._at:
            raise ProtocolError("unencrypted bytes after the request for TLS")

    def asked_for_login(self) -> None:
        """The client must log in now."""
        self.phase = Phase.LOGIN

    def logged_in(self) -> None:
        """The client may send statements now."""
        self.phase = Phase.STATEMENTS

    def failed(self) -> None:
        """What came by the extended protocol failed: what follows is skipped up to Sync."""
        self.phase = Phase.SKIPPING

    def copy_begun(self, *, simple: bool) -> None:
        """The client must send rows now. `simple`: it was a simple query that asked for them."""
        self.phase = Phase.COPY
        self._simple_copy = simple

    def copy_ended(self, *, failed: bool) -> None:
        """No more rows are wanted."""
        self.phase = Phase.SKIPPING if failed and not self._simple_copy else Phase.STATEMENTS

    # --- inside --------------------------------------------------------------------------------------------------

    def _first(self) -> First | None:
        body = self._take(0, STARTUP_MAX)
        if body is None:
            return None
        first = read_first(body)
        if isinstance(first, Startup):
            self.phase = Phase.HANDSHAKE
        return first

    def _typed(self) -> Message | None:
        if len(self._buffer) - self._at < _HEAD_BYTES:
            return None
        kind = self._buffer[self._at]
        in_login = self.phase in _BEFORE_STATEMENTS
        # Before a login nothing but the login counts, and nobody may have much of it kept.
        if in_login and kind not in b"pX":
            raise ProtocolError("a login is expected")
        body = self._take(1, STARTUP_MAX if in_login else self._message_max)
        return None if body is None else read_message(kind, body)

    def _take(self, skipped: int, most: int) -> bytes | None:
        """Takes a message whose length follows `skipped` bytes, or nothing if it isn't all there."""
        start = self._at + skipped
        if len(self._buffer) < start + _LENGTH_BYTES:
            return None
        size = int.from_bytes(self._buffer[start:start + _LENGTH_BYTES], "big")
        if size < _LENGTH_BYTES:
            raise ProtocolError("a message says that it is shorter than its length")
        if size > most:
            raise ProtocolError(f"a message has {size} bytes; at most {most} are allowed here")
        if len(self._buffer) < start + size:
            return None
        body = bytes(self._buffer[start + _LENGTH_BYTES:start + size])
        self._at = start + size
        return body

    def _counts(self, message: First | Message) -> bool:
        """Tells whether a message means something now, or is to be passed over. Raises ProtocolError."""
        if self.phase is Phase.STATEMENTS and not isinstance(message, _NO_STATEMENTS):  # as nearly all are
            return True
        if isinstance(message, _ALWAYS_COUNT):
            return True
        match self.phase:
            case Phase.SKIPPING:
                if not isinstance(message, Sync):
                    return False
                self.phase = Phase.STATEMENTS
            case Phase.COPY:
                if isinstance(message, Flush | Sync):
                    return False
                if not isinstance(message, _OF_COPY):
                    raise ProtocolError("rows of COPY are expected")
            case Phase.STATEMENTS:
                if isinstance(message, Password):
                    raise ProtocolError("a login is not expected here")
                return False  # what comes of a COPY that has failed
        return True
