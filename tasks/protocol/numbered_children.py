"""The child tables of a sink task's results, by the numbers that its writes refer to them by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ResultChild:
    """A child table of the result table: created on its first row. `tag_values` in the order of the table's tags."""

    name: str
    tag_values: tuple[object, ...] = ()


@dataclass(slots=True)
class NumberedChildren:
    """Child tables numbered 0, 1, ...: it grows at its end, and what was said of a number stays true.

    Names, and the values of each tag, in lists of the same length: a million groups have a million children, and none
    of them needs an object of its own on its way to the dnode. All have as many tags as the first ones.
    """

    names: list[str] = field(default_factory=list)
    tags: list[list[object]] = field(default_factory=list)

    @classmethod
    def of(cls, children: Iterable[ResultChild]) -> NumberedChildren:
        """Returns these children, numbered in their order."""
        made = cls()
        for child in children:
            made.append(child)
        return made

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> ResultChild:
        return ResultChild(self.names[number], tuple(values[number] for values in self.tags))

    def append(self, child: ResultChild) -> None:
        self.add([child.name], [[value] for value in child.tag_values])

    def add(self, names: Sequence[str], tags: Sequence[Sequence[object]]) -> None:
        """Numbers more children; `tags` has the values of each tag. ValueError if they don't fit the names."""
        known = self.tags if self.names else [[] for _ in tags]
        if len(known) != len(tags) or any(len(values) != len(names) for values in tags):
            raise ValueError(f"{len(names)} child tables come with {[len(values) for values in tags]} values of tags, "
                             f"where there are {len(known)} tags")
        self.tags = known
        for column, values in zip(known, tags, strict=True):
            column += values
        self.names += names

    def between(self, first: int, end: int) -> NumberedChildren:
        """Returns those from one number on and before another, numbered anew; others may be added meanwhile."""
        return NumberedChildren(self.names[first:end], [values[first:end] for values in self.tags])
