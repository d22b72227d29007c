"""Libraries that aren't always installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.common.errors import LibraryMissingError


@contextmanager
def importing(package: str) -> Iterator[None]:
    """Says how a package is installed if an import inside of the block fails: LibraryMissingError."""
    try:
        yield
    except ImportError as error:
        raise LibraryMissingError(f"this needs the Python package {package}: {error}",
                                  hint="pip install 'penstock[connections]'") from error
