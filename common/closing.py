"""What a `with` block closes."""

from __future__ import annotations

from typing import Self


class Closing:
    """Is closed at the end of a `with` block, whatever ends that."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
