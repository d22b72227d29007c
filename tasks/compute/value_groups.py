"""Dense numbers for groups that columns of rows tell apart: DuckDB is asked once per group, not for each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.planner.task_plans.kernel_spec import ValueKeys
from penstock.planner.task_plans.stream_plan import Field
from penstock.tasks.compute.duckdb_computer import Computer
from penstock.tasks.compute.group_keys import GroupKeys
from penstock.tasks.compute.id_table import Ids, IdTable, Numbers, numbered
from penstock.tasks.compute.kernel_vectors import Columns, NotInKernelError, Vector
from penstock.tasks.compute.vnode_groups import Groups
from penstock.tasks.protocol.block_schema import fields_schema

#: So many groups are known at most: then they are numbered anew, lest those that went take memory for good.
MOST_GROUPS = 1 << 21
_NULL = 0
_DIGEST = pa.field("_digest", pa.string())
_DIGITS = 32
_HALF = np.uint64(32)


class ValueGroups:
    """The groups that came so far. What is numbered stays; `full` says when to begin anew with another object.

    A row's columns become a code, 0 for NULL, and codes of several columns one, pair by pair; codes have groups.
    """

    def __init__(self, spec: ValueKeys, keys: Sequence[Field], children: pa.Table, computer: Computer) -> None:
        self._spec = spec
        self._computer = computer
        self._schema = pa.schema([_DIGEST, *fields_schema(keys)])
        self._children = children
        self._tables = Groups(None, (), children, computer)
        self._codes = [_Codes() for _ in spec.columns]
        self._pairs = [IdTable() for _ in range(len(spec.columns) - 1 + spec.of_tables)]
        self._group_of_code: Numbers = np.full(1, -1)
        self._numbers = IdTable()
        self._keys = GroupKeys(keys)

    def add_tables(self, children: pa.Table) -> None:
        """Does what `Groups.add_tables` does."""
        self._children = children
        self._tables.add_tables(children)

    @property
    def gids(self) -> Ids:
        """The ids of groups by their numbers."""
        return self._numbers.ids

    @property
    def full(self) -> bool:
        """Whether there are so many groups, or values of columns, that their numbers should not be kept."""
        numberings = [self._numbers, *self._pairs]
        return max(*map(len, numberings), *map(len, self._codes)) >= MOST_GROUPS

    def of_rows(self, columns: Columns) -> Numbers:
        """Returns the group number of each row; raises NotInKernelError for unknown tables, and types not expected."""
        codes = [code.of(columns(name)) for code, name in zip(self._codes, self._spec.columns, strict=True)]
        if self._spec.of_tables:
            codes.append(self._tables.places(columns("_tuid").values))
        combined = codes[0]
        for pairs, code in zip(self._pairs, codes[1:], strict=True):
            combined, _ = pairs.intern((combined.view(np.uint64) << _HALF) | code.view(np.uint64))
        if not len(combined):
            return combined
        missing = int(combined.max()) + 1 - len(self._group_of_code)
        if missing > 0:
            more = max(missing, len(self._group_of_code))
            self._group_of_code = np.concatenate((self._group_of_code, np.full(more, -1)))
        groups = self._group_of_code[combined]
        unknown = (groups < 0).nonzero()[0]
        if len(unknown):
            rows = unknown[numbered(combined[unknown].view(np.uint64))[1]]
            self._group_of_code[combined[rows]] = self._found(columns, rows)
            groups[unknown] = self._group_of_code[combined[unknown]]
        return groups

    def keys_of(self, groups: Numbers) -> list[pa.Array]:
        """Returns the keys of groups, column by column."""
        return self._keys.take(groups)

    def column(self, name: str, tuids: npt.NDArray[np.uint64]) -> Vector:
        """Returns `tbname` or a tag of each row."""
        return self._tables.column(name, tuids)

    def _found(self, columns: Columns, rows: Numbers) -> Numbers:
        """Returns the groups of rows whose values did not come before."""
        given = {name: _array(columns(name), rows) for name in self._spec.columns}
        if self._spec.of_tables:
            places = pa.array(self._tables.places(columns("_tuid").values[rows]))
            given |= {name: self._children.column(name).combine_chunks().take(places)
                      for name in self._children.column_names if name != "_tuid"}
        found = self._computer.run_by_row(self._spec.sql, self._schema, keys=pa.table(given))
        gids = _ids_of(found.column(0))
        # Values that differ may be of one group, such as those of tables with the same tags.
        numbers, new = self._numbers.intern(gids)
        self._keys.add([column.take(pa.array(new)) for column in found.columns[1:]], len(new))
        return numbers


class _Codes:
    """Codes for the values of one column: 0 is NULL's, others come as values do."""

    def __init__(self) -> None:
        self._numbers = IdTable()
        self._texts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers) + len(self._texts)

    def of(self, column: Vector) -> Numbers:
        """Returns the code of each row's value; raises NotInKernelError."""
        if column.is_arrow:
            return self._of_texts(column.values)
        values = column.values
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "iub":
            raise NotInKernelError
        wide = values if values.dtype.itemsize == 8 else values.astype(np.int64)
        codes, _ = self._numbers.intern(np.ascontiguousarray(wide).view(np.uint64))
        codes += 1
        if column.valid is not None:
            codes[~column.valid] = _NULL
        return codes

    def _of_texts(self, texts: pa.Array) -> Numbers:
        if pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type):
            texts = texts.dictionary_encode()
        if not pa.types.is_dictionary(texts.type):
            raise NotInKernelError
        known = self._texts
        codes = [_NULL if text is None else known.setdefault(text, len(known) + 1)
                 for text in texts.dictionary.to_pylist()]
        found: Numbers = np.array([*codes, _NULL], np.int64)[np.asarray(texts.indices.fill_null(len(codes)))]
        return found


def _array(column: Vector, rows: Numbers) -> pa.Array:
    """Returns the values of some rows as they came."""
    some = column.take(rows)
    if some.is_arrow:
        return some.values
    return pa.array(some.values, mask=None if some.valid is None else ~some.valid)


def _ids_of(digests: pa.StringArray) -> Ids:
    """Returns the ids of groups: the last eight bytes of digests that are written in small hexadecimal digits."""
    count = len(digests)
    if not count:
        return np.zeros(0, np.uint64)
    _, offsets, content = digests.buffers()
    first = np.frombuffer(offsets, np.int32)[digests.offset]
    digits = np.frombuffer(content, np.uint8)[first : first + count * _DIGITS].reshape(count, _DIGITS)[:, 16:]
    values = (digits & 15) + 9 * (digits >> 6)  # letters have bit 6, and 1 to 6 in the low bits
    octets = np.ascontiguousarray(values[:, ::2] << 4 | values[:, 1::2])
    return octets.view("<u8").reshape(count)
