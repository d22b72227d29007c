"""The server's certificate and private key, from the files that the configuration names."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from penstock.common.config import Config
from penstock.common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tls:
    """Two PEM files: `certificate` with its chain, and the `key` of it."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Returns what a listening socket is wrapped with: TLS 1.2 or newer. Raises ConfigError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # SSLError is one
            raise ConfigError(f"{self.certificate} and {self.key} are not a certificate and its key: "
                              f"{error.strerror or error}", hint="see tlsCertificate and tlsKey") from error
        return context

    def pem(self) -> tuple[bytes, bytes]:
        """Returns certificate and key as they are in the files. Raises ConfigError."""
        self.context()
        return self.certificate.read_bytes(), self.key.read_bytes()


def tls_of(config: Config) -> Tls | None:
    """Returns the files, or None if none are configured. Raises ConfigError if only one is."""
    certificate, key = config.tls_certificate, config.tls_key
    if bool(certificate) != bool(key):
        raise ConfigError("tlsCertificate and tlsKey belong together: only one of them is set")
    return Tls(Path(certificate).expanduser(), Path(key).expanduser()) if certificate else None
