"""Authenticates users: a password or a bearer token becomes an identity. What it may do is decided in `roles`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import math
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from penstock.common.clock import Clock
from penstock.common.config import Config
from penstock.common.errors import ConfigError, LoginDelayedError, UnauthenticatedError
from penstock.common.logging import logger
from penstock.common.passwords import SALT_BYTES, PasswordHash, ScramVerifier
from penstock.common.tls import Tls, tls_of
from penstock.mnode.access.audit_log import Audit, Origin
from penstock.mnode.access.login_throttle import LoginThrottle, Who
from penstock.mnode.access.roles import OWNER, Identity, identity_of
from penstock.mnode.catalog.catalog_records import UserRecord

_log = logger(__name__)
_TOKEN_BYTES = 32
_TOKENS_MAX = 10_000
_HASHES_AT_ONCE = 2
_PASS_S = 60.0
# What a password is held against where there is no such user: the answer takes as long.
_NOBODY = PasswordHash(bytes(SALT_BYTES).hex(), bytes(32).hex())


class UsersView(Protocol):
    """The users as they are now."""

    def named(self, name: str) -> UserRecord | None: ...

    def all(self) -> Collection[UserRecord]: ...

    @property
    def are_lost(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Token:
    """What stands for user and password for `lifetime_s` seconds; `text` goes behind `Authorization: Bearer`."""

    text: str = field(repr=False)
    lifetime_s: float
    user: str


@dataclass(frozen=True, slots=True)
class Pass:
    """Who was let in, and from where. Good while `Logins.holds` says so; `record`: the user's then."""

    identity: Identity
    origin: Origin
    record: UserRecord | None
    until: float


@dataclass(frozen=True, slots=True)
class _Grant:
    """What a token was given for. It is worth nothing once the user has another password or is gone. `user` None: the
    owner, who came by the socket.
    """

    user: str | None
    password: PasswordHash | None
    expires_at: float


class Logins:
    """Knows tokens and users; safe for many threads. Keeps no password and no token, only digests of them.

    While there are no users nobody comes in by listeners, unless `trusting`: everybody is the owner then, and callers
    listen on the loopback interface (`check_host`).
    """

    def __init__(
        self, users: UsersView, clock: Clock, random_bytes: Callable[[int], bytes], lifetime_s: float,
        trusting: bool = False, audit: Audit | None = None,
    ) -> None:
        """`random_bytes`: as `secrets.token_bytes`. Tokens are valid for `lifetime_s` seconds. `audit` takes
        note of who comes, where the listeners say that somebody does.
        """
        self._audit = audit
        self._trusting = trusting
        self._users = users
        self._clock = clock
        self._random_bytes = random_bytes
        self._lifetime_s = lifetime_s
        self._lock = threading.Lock()
        #: by their digests, in the order in which they expire
        self._tokens: dict[bytes, _Grant] = {}
        #: keyed digests of passwords that were right, so that only the first request of a client pays for scrypt
        self._recent: dict[str, tuple[PasswordHash, bytes]] = {}
        self._key = random_bytes(32)
        #: who a user's record says that one is, as each request asks for it
        self._identities: dict[str, tuple[UserRecord, Identity]] = {}
        self._throttle = LoginThrottle()
        #: whether a password fits a user's hash, for those that are being tried
        self._under_way: dict[tuple[str, bytes, PasswordHash], Future[bool]] = {}
        self._turns, self._turns_of_known = (threading.BoundedSemaphore(_HASHES_AT_ONCE) for _ in range(2))

    @contextmanager
    def noting(self, origin: Origin, header: str | None = None) -> Iterator[Callable[[str], None]]:
        """Gives what is to be called with the name of who has got in, in a `with` block around the login.

        A refusal is noted, too; that a token of a `header` is taken isn't, since its login was.
        """
        def note(user: str) -> None:
            if self._audit is not None and not (header or "").lower().startswith("bearer "):
                self._audit.login(user, origin, again=header is not None)

        try:
            yield note
        except UnauthenticatedError:
            if self._audit is not None:
                self._audit.login_refused(origin)
            raise

    def admit(self, header: str | None, origin: Origin) -> Pass:
        """Lets in who sent this Authorization header, as `authorize` does, and takes note of it.

        Who sends it again with the same connection is let in by the pass while that is good: a password costs more to
        read and to compare than a row to write.
        """
        until = self._clock.monotonic() + _PASS_S
        with self.noting(origin, header or "") as note:
            identity = self.authorize(header, origin.address)
            note(identity.name)
        scheme, credentials = _scheme_of(header)
        if scheme == "bearer" and (grant := self._tokens.get(_digest(credentials))) is not None:
            until = min(until, grant.expires_at)
        record, known = self._identities.get(identity.name, (None, None))
        return Pass(identity, origin, record if known is identity else None, until)

    def holds(self, admitted: Pass) -> bool:
        """Tells whether a pass is still good: for a minute, as long as nothing about the user is changed."""
        if self._clock.monotonic() >= admitted.until:
            return False
        if admitted.identity is OWNER:
            return self.lets_everybody_in
        return admitted.record is not None and self._users.named(admitted.identity.name) is admitted.record

    def authorize(self, header: str | None, address: str = "") -> Identity:
        """Returns who sent this Authorization header, `Basic ...` or `Bearer ...`, from `address`.

        Raises UnauthenticatedError or LoginDelayedError.
        """
        if self.lets_everybody_in:
            return OWNER
        scheme, credentials = _scheme_of(header)
        if scheme == "bearer":
            return self.identify(credentials)
        if scheme == "basic":
            return self.check(*read_basic(credentials), address)
        self._check_users()
        raise UnauthenticatedError("user and password or a token are needed",
                                   hint="send Authorization: Basic or Bearer")

    def login(self, user: str, password: str, address: str = "") -> Token:
        """Returns a new token. Raises UnauthenticatedError or LoginDelayedError."""
        identity = self.check(user, password, address)
        record = self._users.named(identity.name)
        return self._new_token(identity.name, record.password if record is not None else None)

    def login_owner(self) -> Token:
        """Returns a new token for who has reached the socket, which only the engine's account and root can."""
        return self._new_token(None, None)

    def _new_token(self, user: str | None, password: PasswordHash | None) -> Token:
        now = self._clock.monotonic()
        text = base64.urlsafe_b64encode(self._random_bytes(_TOKEN_BYTES)).decode().rstrip("=")
        with self._lock:
            while self._tokens and self._is_over(next(iter(self._tokens.values())), now):
                del self._tokens[next(iter(self._tokens))]
            self._tokens[_digest(text)] = _Grant(user, password, now + self._lifetime_s)
        return Token(text, self._lifetime_s, OWNER.name if user is None else user)

    def identify(self, token: str) -> Identity:
        """Returns who logged in for this token, with the role that the user has now. Raises UnauthenticatedError."""
        if self.lets_everybody_in:
            return OWNER
        with self._lock:
            grant = self._tokens.get(_digest(token))
        if grant is None:
            self._check_users()
            raise UnauthenticatedError("this token is not known", hint="log in again")
        if grant.expires_at <= self._clock.monotonic():
            raise UnauthenticatedError("this token has expired", hint="log in again")
        if grant.user is None:
            return OWNER
        user = self._users.named(grant.user)
        if user is None or user.password != grant.password:
            raise UnauthenticatedError("this token is no longer valid", hint="log in again")
        return self._identity_of(user)

    def check(self, user: str, password: str, address: str = "") -> Identity:
        """Returns who has this user and password. Raises UnauthenticatedError or LoginDelayedError.

        The latter depends on what `address` has tried before, but never on whether there is such a user.
        """
        if self.lets_everybody_in:
            return OWNER
        self._check_users()
        record = self._users.named(user)
        digest = hashlib.blake2b(password.encode(), key=self._key, digest_size=32).digest()  # for each request
        if record is not None and self._was_right(record, digest):
            return self._identity_of(record)
        fits = self._try(user, password, digest, address, record.password if record is not None else _NOBODY)
        if record is None or not fits:
            _refuse(record)
        with self._lock:
            self._recent[record.name] = (record.password, digest)
        return self._identity_of(record)

    def verifier_for(self, user: str) -> ScramVerifier:
        """Returns what a user who logs in by SCRAM is held against: for one that isn't there something that no password
        fits, the same each time. Raises UnauthenticatedError if nobody can log in.
        """
        self._check_users()
        record = self._users.named(user)
        if record is not None:
            return record.scram
        salt, stored, server = (hmac.digest(self._key, f"{part} {user}".encode(), "sha256").hex()
                                for part in ("salt", "stored", "server"))
        return ScramVerifier(salt[:2 * SALT_BYTES], stored, server)

    def check_proof(self, user: str, stored: ScramVerifier, fits: Callable[[], bool], address: str = "") -> Identity:
        """Returns who has shown by SCRAM, as `fits` tells, to have the password that `stored` was made of.

        Raises UnauthenticatedError or LoginDelayedError, as `check` does.
        """
        with self._lock:  # it costs next to nothing, so that nobody waits for others here
            who = self._enter(user, address)
            fit = False
            try:
                fit = fits()
            finally:
                self._throttle.leave(who, fit, self._clock.monotonic())
        record = self._users.named(user)
        if record is None or record.scram != stored or not fit:
            _refuse(record)
        return self._identity_of(record)

    def renew(self, identity: Identity, stored: PasswordHash | None) -> Identity:
        """Returns who logged in once, with the role that the user has now; `stored`: the password's hash at that time,
        None for the owner. Raises UnauthenticatedError if the user has gone, or has another password.
        """
        if stored is None:
            if self.lets_everybody_in:
                return OWNER
            raise UnauthenticatedError("there are users now", hint="log in again")
        record = self._users.named(identity.name)
        if record is None or record.password != stored:
            raise UnauthenticatedError("this login is no longer valid", hint="log in again")
        return self._identity_of(record)

    def password_of(self, identity: Identity) -> PasswordHash | None:
        """Returns what `renew` takes for who has just logged in."""
        record = self._users.named(identity.name)
        return None if record is None else record.password

    @property
    def lets_everybody_in(self) -> bool:
        """Whether everybody who reaches a listener is the owner: there are no users, and trust is configured."""
        return self._trusting and not self._users.all() and not self._users.are_lost

    def _check_users(self) -> None:
        if self._users.all():
            return
        if self._users.are_lost:
            raise UnauthenticatedError(
                "the users were lost with the catalog, so nobody may connect",
                hint="create one on this machine: CREATE USER, at the server's socket, or with penstock -d DATA")
        raise UnauthenticatedError(
            "there are no users yet, so nobody can log in", hint="create the first one at the engine's "
            "prompt or its socket: CREATE USER name PASS '...' ROLE admin")

    def _try(self, user: str, password: str, digest: bytes, address: str, stored: PasswordHash) -> bool:
        """Tells whether the password fits; who tries the same one meanwhile gets the same answer."""
        trial = (user, digest, stored)
        with self._lock:
            same = self._under_way.get(trial)
            if same is None:
                who = self._enter(user, address)
                mine = self._under_way[trial] = Future()
                turns = self._turns_of_known if self._throttle.has_been_here(who) else self._turns
        if same is not None:
            return same.result()
        fits = False
        try:
            with turns:
                fits = stored.fits(password)
        finally:
            with self._lock:
                self._throttle.leave(who, fits, self._clock.monotonic())
                del self._under_way[trial]
            mine.set_result(fits)
        return fits

    def _enter(self, user: str, address: str) -> Who:
        """Lets a try begin, with the lock. Raises LoginDelayedError."""
        who = hmac.digest(self._key, user.encode(), "sha256"), address
        wait_s = self._throttle.enter(who, self._clock.monotonic())
        if wait_s:
            raise LoginDelayedError("too many failed or simultaneous logins of this user or address",
                                    retry_after_s=wait_s, hint=f"try again in {math.ceil(wait_s)} s")
        return who

    def _identity_of(self, record: UserRecord) -> Identity:
        known = self._identities.get(record.name)
        if known is None or known[0] is not record:
            known = self._identities[record.name] = record, identity_of(record)
        return known[1]

    def _was_right(self, record: UserRecord, digest: bytes) -> bool:
        with self._lock:
            recent = self._recent.get(record.name)
        return recent is not None and recent[0] == record.password and hmac.compare_digest(recent[1], digest)

    def _is_over(self, grant: _Grant, now: float) -> bool:
        return grant.expires_at <= now or len(self._tokens) >= _TOKENS_MAX


def check_host(host: str, users: UsersView) -> None:
    """Raises ConfigError if a server must not listen on `host`: without users only this machine may reach it."""
    if not users.all() and not is_loopback(host):
        raise ConfigError(f"there are no users, so the server must not listen on {host}, where other machines reach it",
                          hint="CREATE USER admin PASS '...' ROLE admin, or listen on 127.0.0.1")


def tls_for_clients(config: Config, users: UsersView) -> Tls | None:
    """Returns the TLS that a server for clients speaks on `host`, or None. Raises ConfigError; see `check_host`.

    A new node of a cluster gets its users from the others; until then nobody comes in.
    """
    if not config.cluster_node or config.trust_loopback:
        check_host(config.host, users)
    if config.trust_loopback and not users.all():
        _log.warning("trustLoopback is set and there are no users: every account of this machine may do everything")
    tls = tls_of(config)
    if tls is None and not is_loopback(config.host):
        _log.warning("passwords and rows cross the network in clear: tlsCertificate and tlsKey are not set")
    return tls


def is_loopback(host: str) -> bool:
    """Tells whether a name or address means this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _scheme_of(header: str | None) -> tuple[str, str]:
    """Returns the scheme of an Authorization header, in lower case, and what it says."""
    scheme, _, credentials = (header or "").strip().partition(" ")
    return scheme.lower(), credentials.strip()


def read_basic(credentials: str) -> tuple[str, str]:
    """Returns user and password of a Basic Authorization. Raises UnauthenticatedError."""
    padding = "=" * (-len(credentials) % 4)  # which some clients leave out
    try:
        user, colon, password = base64.b64decode(credentials + padding, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon:
        raise UnauthenticatedError("the Basic authorization is malformed", hint="it is base64 of user:password")
    return user, password


def _refuse(record: UserRecord | None) -> NoReturn:
    # What was given as a user isn't logged: it may be a password that slipped into the wrong field.
    _log.warning("a login was refused: %s", "no such user" if record is None else f"wrong password for {record.name}")
    raise UnauthenticatedError("user or password is wrong")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
