"""Trees of expressions walked and copied: in loops, since sqlglot's own ways call ten times as much per node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from sqlglot import exp

_Node = TypeVar("_Node", bound=exp.Expression)


def nodes_of(tree: exp.Expression) -> list[exp.Expression]:
    """Returns the nodes of a tree, those above before those below."""
    nodes = [tree]
    for node in nodes:
        if not node.is_primitive:
            _add_parts(node, nodes)
    return nodes


def parts_of(node: exp.Expression) -> list[exp.Expression]:
    """Returns the nodes right below a node, in the order of its parts."""
    parts: list[exp.Expression] = []
    _add_parts(node, parts)
    return parts


def _add_parts(node: exp.Expression, to: list[exp.Expression]) -> None:
    for part in node.args.values():
        if isinstance(part, exp.Expression):
            to.append(part)
        elif type(part) is list:
            for item in part:
                if isinstance(item, exp.Expression):
                    to.append(item)


def found_in(tree: exp.Expression, *kinds: type[exp.Expression]) -> list[Any]:
    """Returns the nodes of these kinds, in the order of `nodes_of`."""
    return [node for node in nodes_of(tree) if isinstance(node, kinds)]


def copied(tree: _Node) -> _Node:
    """Returns a copy of a tree. What nodes know beside their parts, such as their place in the text, is copied too."""
    root = _copied_node(tree, None, None, None)
    pending: list[exp.Expression] = [root]
    for node in pending:
        if node.is_primitive:
            continue
        args = node.args
        for name, part in args.items():
            if isinstance(part, exp.Expression):
                args[name] = child = _copied_node(part, node, name, None)
                pending.append(child)
            elif type(part) is list:
                args[name] = [_copied_node(item, node, name, index) if isinstance(item, exp.Expression) else item
                              for index, item in enumerate(part)]
                pending += [item for item in args[name] if isinstance(item, exp.Expression)]
    return root


def _copied_node(node: _Node, parent: exp.Expression | None, name: str | None, index: int | None) -> _Node:
    kind: Any = type(node)
    copy = kind.__new__(kind)
    copy.args = dict(node.args)
    copy.parent, copy.arg_key, copy.index = parent, name, index
    copy.comments, copy._type, copy._hash = node.comments, node._type, node._hash
    copy._meta = None if node._meta is None else dict(node._meta)
    found: _Node = copy
    return found


def unwrapped(node: exp.Expression) -> exp.Expression:
    """Returns the expression without parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def conjuncts(node: exp.Expression | None) -> Iterator[exp.Expression]:
    """Yields the conditions that AND joins."""
    pending = [] if node is None else [node]
    while pending:
        part = unwrapped(pending.pop())
        if isinstance(part, exp.And):
            pending += [part.expression, part.this]
        else:
            yield part
