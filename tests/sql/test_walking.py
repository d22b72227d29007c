"""Walking and copying trees: what sqlglot's own ways give, with less effort."""

from __future__ import annotations

import pytest
from sqlglot import exp

from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import JoinSource
from penstock.sql.tree.walking import copied, found_in, nodes_of, parts_of

STATEMENTS = (
    "SELECT a.ts, max(b.v) FILTER (WHERE b.v IN (1, 2)) FROM a JOIN b ON a.ts = b.ts GROUP BY a.ts ORDER BY 1 LIMIT 3",
    "SELECT CASE WHEN v > 1 THEN {'a': [1, 2]} END FROM t WHERE v > (SELECT avg(v) FROM u) UNION SELECT 1",
    "CREATE STREAM s INTO o AS SELECT _wstart, count(*) FROM m PARTITION BY tbname INTERVAL(10s)",
)


@pytest.mark.parametrize("text", STATEMENTS)
def test_nodes_come_as_sqlglot_has_them(text: str) -> None:
    """Those above before those below; the parts of a node in their order."""
    tree = parse_one(text)
    assert list(map(id, nodes_of(tree))) == list(map(id, tree.walk()))
    for node in nodes_of(tree):
        assert list(map(id, parts_of(node))) == list(map(id, node.iter_expressions()))


def test_nodes_are_found_by_their_kinds() -> None:
    """Of one kind or of several, wherever they stand."""
    tree = parse_one(STATEMENTS[0])
    assert [node.name for node in found_in(tree, exp.Column)] == ["ts", "ts", "ts", "ts", "v", "v"]
    assert len(found_in(tree, JoinSource, exp.In)) == 2


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_copy_is_equal_and_shares_no_node(text: str) -> None:
    """Each node of it knows its place in the text and in the tree."""
    tree = parse_one(text)
    copy = copied(tree)
    assert copy == tree
    assert copy.parent is None
    pairs = list(zip(nodes_of(tree), nodes_of(copy), strict=True))
    for one, other in pairs:
        assert other is not one
        assert (other.meta, other.arg_key, other.index) == (one.meta, one.arg_key, one.index)
        assert other.meta is not one.meta
    copies = {id(one): other for one, other in pairs}
    assert all(other.parent is copies[id(one.parent)] for one, other in pairs if one.parent is not None)
