"""Passwords as salted hashes: what is kept of them, and whether a password is the one."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

SALT_BYTES = 16
# What one guess costs: 16 MiB, five times. Kept with each hash, so that it may grow.
_COST, _BLOCK_SIZE, _PARALLEL = 2**14, 8, 5
_MEMORY_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """scrypt's answer to a password, in hexadecimal, with all that it takes to compute it again."""

    salt: str = field(repr=False)
    digest: str = field(repr=False)
    cost: int = _COST
    block_size: int = _BLOCK_SIZE
    parallel: int = _PARALLEL

    def fits(self, password: str) -> bool:
        """Tells whether this is the hash of `password`, in a time that doesn't depend on how much of it is right."""
        digest = _scrypt(password, bytes.fromhex(self.salt), self.cost, self.block_size, self.parallel)
        return hmac.compare_digest(digest, bytes.fromhex(self.digest))


def hash_password(password: str, salt: bytes, cost: int = _COST) -> PasswordHash:
    """Returns what is kept of a password. `salt`: SALT_BYTES random bytes, other ones for each password.

    `cost`: a power of two, to which time and memory are proportional.
    """
    return PasswordHash(salt.hex(), _scrypt(password, salt, cost, _BLOCK_SIZE, _PARALLEL).hex(), cost)


def _scrypt(password: str, salt: bytes, cost: int, block_size: int, parallel: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=cost, r=block_size, p=parallel, maxmem=_MEMORY_MAX, dklen=32)
