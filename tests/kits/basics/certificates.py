"""A certificate for this machine, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

OPENSSL = shutil.which("openssl")
NO_OPENSSL = "openssl isn't there to make a certificate"


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Returns PEM files of a new certificate for localhost, which signs itself, and of its key."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [str(OPENSSL), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=60)
    return certificate, key


def make_authority(folder: Path, name: str = "authority") -> tuple[Path, Path]:
    """Returns PEM files of a new authority's certificate and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
             "-keyout", str(key), "-out", str(certificate))
    return certificate, key


def make_certificate_of(authority: tuple[Path, Path], folder: Path, host: str) -> tuple[Path, Path]:
    """Returns PEM files of a certificate for a host name that an authority has signed, and of its key."""
    certificate, key, request = folder / f"{host}.pem", folder / f"{host}.key", folder / f"{host}.csr"
    extension = folder / f"{host}.ext"
    extension.write_text(f"subjectAltName=DNS:{host}\n")
    _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={host}", "-keyout", str(key), "-out", str(request))
    _openssl("x509", "-req", "-in", str(request), "-CA", str(authority[0]), "-CAkey", str(authority[1]),
             "-CAcreateserial", "-days", "2", "-extfile", str(extension), "-out", str(certificate))
    return certificate, key


def _openssl(*arguments: str) -> None:
    subprocess.run([str(OPENSSL), *arguments], check=True, capture_output=True, timeout=60)
