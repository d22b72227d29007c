"""The server's side of a login by SCRAM-SHA-256 (RFC 5802, RFC 7677), as a pure exchange of messages."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from penstock.common.passwords import ScramVerifier
from penstock.shell.postgres.frontend import ProtocolError, decoded

MECHANISM = "SCRAM-SHA-256"
NONCE_BYTES = 18
"""Random bytes of the server in a nonce."""
# Channel binding isn't offered; the user is the one of the startup message, whatever stands here.
_FIRST = re.compile(r"(?P<binding>[ny]),,(?P<bare>n=[^,]*,r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+))(?:,.*)?", re.DOTALL)
_FINAL = re.compile(r"(?P<without_proof>c=(?P<binding>[^,]*),r=(?P<nonce>[^,]*)(?:,.*)?),p=(?P<proof>[^,]*)",
                    re.DOTALL)


@dataclass(frozen=True, slots=True)
class ScramFirst:
    """The client's first message, taken apart."""

    binding: str
    bare: str
    nonce: str

    @classmethod
    def read(cls, data: bytes) -> ScramFirst:
        """Reads what comes with the choice of the mechanism. Raises ProtocolError."""
        name, _, rest = data.partition(b"\0")
        if name != MECHANISM.encode():
            raise ProtocolError(f"only {MECHANISM} is offered")
        size = int.from_bytes(rest[:4], "big", signed=True)
        text = rest[4:]
        found = _FIRST.fullmatch(decoded(text)) if size == len(text) else None
        if found is None:
            raise ProtocolError("the first message of SCRAM is malformed")
        return cls(found["binding"], found["bare"], found["nonce"])


@dataclass(frozen=True, slots=True)
class ScramExchange:
    """A login under way: what has been said, and what the user's password is held against."""

    first: ScramFirst
    verifier: ScramVerifier
    nonce: str

    @classmethod
    def begin(cls, data: bytes, verifier: ScramVerifier, random: bytes) -> ScramExchange:
        """Takes the client's first message; `random` bytes are the server's part of the nonce. Raises ProtocolError."""
        first = ScramFirst.read(data)
        return cls(first, verifier, first.nonce + base64.b64encode(random).decode())

    def reply(self) -> bytes:
        """Returns the server's first message."""
        salt = base64.b64encode(bytes.fromhex(self.verifier.salt)).decode()
        return f"r={self.nonce},s={salt},i={self.verifier.iterations}".encode()

    def read_final(self, data: bytes) -> tuple[bytes, bytes]:
        """Returns the proof in the client's last message, and what it is over. Raises ProtocolError."""
        found = _FINAL.fullmatch(decoded(data))
        if found is None:
            raise ProtocolError("the last message of SCRAM is malformed")
        if found["nonce"] != self.nonce or _decoded(found["binding"]) != f"{self.first.binding},,".encode():
            raise ProtocolError("the last message of SCRAM belongs to another login")
        exchanged = b",".join([self.first.bare.encode(), self.reply(), found["without_proof"].encode()])
        return _decoded(found["proof"]), exchanged

    def end(self, exchanged: bytes) -> bytes:
        """Returns the server's last message, after a proof that fits."""
        return b"v=" + base64.b64encode(self.verifier.signature(exchanged))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ProtocolError("a message of SCRAM is not base64") from error
