"""Passwords as salted hashes: what is kept of them, and whether a password is the one.

For logins by SCRAM (RFC 5802, RFC 7677) a verifier is kept beside: from it nobody can log in, but who has it can check
guesses.
"""

from __future__ import annotations

import hashlib
import hmac
import stringprep
import unicodedata
from dataclasses import dataclass, field

SALT_BYTES = 16
# What one guess costs: 16 MiB, five times. Kept with each hash, so that it may grow.
_COST, _BLOCK_SIZE, _PARALLEL = 2**14, 8, 5
_MEMORY_MAX = 64 * 1024 * 1024
#: Of a guess at a SCRAM verifier; the client pays it at each login.
_ITERATIONS = 32_768
_PROHIBITED = (stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4,
               stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
               stringprep.in_table_c9)


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


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """What SCRAM-SHA-256 needs of a password, in hexadecimal: salt, StoredKey, ServerKey, and its iterations."""

    salt: str = field(repr=False)
    stored_key: str = field(repr=False)
    server_key: str = field(repr=False)
    iterations: int = _ITERATIONS

    def fits(self, proof: bytes, exchanged: bytes) -> bool:
        """Tells whether a client's proof over what was exchanged shows that it has the password."""
        stored = bytes.fromhex(self.stored_key)
        signature = hmac.digest(stored, exchanged, "sha256")
        if len(proof) != len(signature):
            return False
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.sha256(client_key).digest(), stored)

    def signature(self, exchanged: bytes) -> bytes:
        """Returns what shows the client that this side has the verifier."""
        return hmac.digest(bytes.fromhex(self.server_key), exchanged, "sha256")


def scram_verifier(password: str, salt: bytes, iterations: int = _ITERATIONS) -> ScramVerifier:
    """Returns what is kept of a password for SCRAM. `salt`: as with `hash_password`, and not the same."""
    salted = hashlib.pbkdf2_hmac("sha256", _prepared(password).encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return ScramVerifier(salt.hex(), hashlib.sha256(client_key).hexdigest(),
                         hmac.digest(salted, b"Server Key", "sha256").hex(), iterations)


def _prepared(password: str) -> str:
    """Returns a password as SASLprep (RFC 4013) writes it; one that it prohibits stays as it is."""
    if password.isascii():
        return password
    mapped = "".join(" " if stringprep.in_table_c12(each) else each for each in password
                     if not stringprep.in_table_b1(each))
    prepared = unicodedata.normalize("NFKC", mapped)
    if not prepared or any(prohibits(each) for each in prepared for prohibits in _PROHIBITED):
        return password
    from_right = [stringprep.in_table_d1(each) for each in prepared]
    if any(from_right) and not (from_right[0] and from_right[-1]
                                and not any(map(stringprep.in_table_d2, prepared))):
        return password
    return prepared
