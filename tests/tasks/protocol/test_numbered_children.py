"""The children that sink tasks number: they grow at the end, and are sent on from any number."""

from __future__ import annotations

import pytest

from penstock.tasks.protocol.numbered_children import NumberedChildren, ResultChild


def test_numbers_stay_true() -> None:
    """What comes later is behind what was there; a part of it is numbered anew."""
    children = NumberedChildren.of([ResultChild("a", (1, "x"))])
    children.add(["b", "c"], [[2, 3], [None, "z"]])
    assert [children[number] for number in range(3)] == [
        ResultChild("a", (1, "x")), ResultChild("b", (2, None)), ResultChild("c", (3, "z"))]
    assert children.between(1, 3) == NumberedChildren.of([ResultChild("b", (2, None)), ResultChild("c", (3, "z"))])
    assert children.between(1, 2) == NumberedChildren.of([ResultChild("b", (2, None))])
    assert len(children.between(3, 3)) == 0


@pytest.mark.parametrize("tags", [[], [[1]], [[1], [2], [3]], [[1, 1], [2]]])
def test_children_with_other_tags_are_refused(tags: list[list[object]]) -> None:
    """Nothing of them is taken."""
    children = NumberedChildren(["a"], [[1], ["x"]])
    with pytest.raises(ValueError, match="1 child tables come with"):
        children.add(["b"], tags)
    assert children == NumberedChildren(["a"], [[1], ["x"]])
