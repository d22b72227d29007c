"""A line of text behind its checksum: what small files are written as, so that damage is named."""

from __future__ import annotations

from penstock.common.errors import CorruptionError
from penstock.wal.record import crc32c


def seal(text: bytes) -> bytes:
    """Returns the text, which must be one line, with its CRC32C before it."""
    return b"%08x\n%s\n" % (crc32c(text), text)


def unseal(data: bytes, what: str) -> bytes:
    """Returns the sealed text; raises CorruptionError naming `what` if it isn't exactly as written."""
    checksum, _, rest = data.partition(b"\n")
    text = rest[:-1]
    if rest[-1:] != b"\n" or checksum != b"%08x" % crc32c(text):
        raise CorruptionError(f"{what} fails its checksum")
    return text
