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
