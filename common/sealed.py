"""A line of text behind its checksum: what small files are written as, so that damage is named."""

from __future__ import annotations

import google_crc32c

from penstock.common.errors import CorruptionError


def seal(text: bytes) -> bytes:
    """Returns the text, which must be one line, with its CRC32C before it."""
    return b"%08x\n%s\n" % (google_crc32c.value(text), text)


def unseal(data: bytes, what: str, hint: str | None = None) -> bytes:
    """Returns the sealed text; raises CorruptionError naming `what` if it isn't exactly as written."""
    checksum, _, rest = data.partition(b"\n")
    text = rest[:-1]
    if rest[-1:] != b"\n" or checksum != b"%08x" % google_crc32c.value(text):
        raise CorruptionError(f"{what} fails its checksum", hint=hint)
    return text
