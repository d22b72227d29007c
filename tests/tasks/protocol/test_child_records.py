"""META records of new child tables tell what was written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from penstock.mnode.ddl.meta_records import create_children
from penstock.tasks.protocol.child_records import new_children


@pytest.mark.parametrize("names", [("a", "b"), ("a.b", "")])
def test_what_is_written_is_read_again(names: tuple[str, str]) -> None:
    """By columns, also of child tables without tags; bytes are told as hexadecimal digits."""
    uids = np.array([1, 1 << 40], np.uint64)
    for tags, wanted in (([[1, None], [b"\x00", "x"]], [(1, "00"), (None, "x")]), ([], [(), ()])):
        body = json.loads(json.dumps(create_children(7, uids, names, tags)))
        assert list(new_children(body).rows()) == [
            (uid, name, values) for uid, name, values in zip(uids.tolist(), names, wanted, strict=True)]
