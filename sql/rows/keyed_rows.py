"""What rows of a table with a KEY are stored by: a place in the order of rows, and the key as one text.

Stores order rows by a time, and tell those of one time apart by a second column. A row without a time of its own gets
both from its KEY: rows with keys that are equal replace each other, as rows of one time do elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidValueError
from penstock.sql.schema import KEY_TEXT, PLACE, Column, Table
from penstock.sql.types import FLOATS, INTEGERS, STRINGS, Kind

KEY_BYTES_MAX = 16_384
"""The text of a key is in each record and file twice: as it is, and in statistics."""

# Later than any time that KEEP may let go.
_FIRST_PLACE = 1 << 62
_FIRST_OF_TEXTS = _FIRST_PLACE + (1 << 61)
# How many bits places by number have; those of a number of 64 bits must have so many of them at least.
_BITS, _WIDE, _FEWEST_BITS = 60, 64, 24
# How values are told apart within a text, what stands for NULL, and for both in a value.
_BETWEEN, _ESCAPE, _NULL = "\x1f", "\x1e", "\x1e0"


def keyed(table: Table, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns rows of a table with a KEY, under their physical names, with the columns that they are stored by.

    Raises InvalidValueError for a key that is too long.
    """
    keys = [(column, batch.column(column.physical)) for column in table.key_columns]
    texts = key_texts([values for _, values in keys], [column.type.kind for column, _ in keys])
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest > KEY_BYTES_MAX:
        raise InvalidValueError(f"a key of {table.name} has {longest} bytes as text, at most {KEY_BYTES_MAX} are "
                                "possible")
    return pa.RecordBatch.from_arrays(
        [pa.array(_places(keys, texts)).view(PLACE.type.arrow()), texts, *batch.columns],
        names=[PLACE.physical, KEY_TEXT.physical, *batch.schema.names])


def numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns rows that `keyed` has given, of which those with equal keys don't replace each other.

    The first one of them has its key, as the only one would have; the others have their number behind it.
    """
    place = batch.schema.get_field_index(KEY_TEXT.physical)
    texts = batch.column(place)
    codes = texts.dictionary_encode().indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))[:len(ordered)])
    lengths = np.diff(np.append(begins, len(ordered)))
    numbers = np.empty(len(codes), np.int64)
    numbers[order] = np.arange(len(ordered)) - np.repeat(begins, lengths)
    if not numbers.any():
        return batch
    written = pc.binary_join_element_wise(texts, pa.array(numbers).cast(pa.string()), f"{_BETWEEN}{_ESCAPE}")
    return batch.set_column(place, KEY_TEXT.physical, pc.if_else(pa.array(numbers > 0), written, texts))


def may_have_neighbours(places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Returns which places rows with other keys may share: those by hash; places by number are of one key each."""
    found: npt.NDArray[np.bool_] = places >= _FIRST_OF_TEXTS
    return found


def key_texts(columns: Sequence[pa.Array], kinds: Sequence[Kind]) -> pa.StringArray:
    """Returns a text per row, which is the same for rows whose values are equal, and for no others.

    NULLs are equal, as they are in GROUP BY, and so are all NaN, and 0.0 and -0.0.
    """
    return pc.binary_join_element_wise(*map(_texts, columns, kinds), _BETWEEN)


def equal_values(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Returns which values are the same on both sides, NULL and NaN being equal to themselves."""
    same = pc.fill_null(pc.equal(left, right), False)
    both = pc.and_(pc.is_null(left, nan_is_null=True), pc.is_null(right, nan_is_null=True))
    kinds = pc.equal(pc.is_null(left), pc.is_null(right))
    found: npt.NDArray[np.bool_] = pc.or_(same, pc.and_(both, kinds)).to_numpy(zero_copy_only=False)
    return found


def _texts(values: pa.Array, kind: Kind) -> pa.StringArray:
    if kind is Kind.TIMESTAMP:
        values = values.cast(pa.int64())
    elif kind in FLOATS:
        values = pc.add(values, pa.scalar(0.0, values.type))
    if pa.types.is_binary(values.type):
        texts = pa.array([None if value is None else value.hex() for value in values.to_pylist()], pa.string())
    else:
        texts = values.cast(pa.string())
    if kind in STRINGS:
        for found, written in ((_ESCAPE, f"{_ESCAPE}1"), (_BETWEEN, f"{_ESCAPE}2")):
            texts = pc.replace_substring(texts, found, written)
    return pc.fill_null(texts, _NULL)


def _places(keys: Sequence[tuple[Column, pa.Array]], texts: pa.StringArray) -> npt.NDArray[np.int64]:
    """Rows with keys of whole numbers lie in the order of these, so that those near each other are read together."""
    found = _places_of_numbers([values for _, values in keys]) if all(
        column.type.kind in INTEGERS for column, _ in keys) else None
    if found is None:
        return _places_of_texts(texts)
    places, ordered = found
    if not ordered.all():
        places[~ordered] = _places_of_texts(texts.filter(pa.array(~ordered)))
    return places


def _places_of_numbers(keys: Sequence[pa.Array]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]] | None:
    """Returns where rows lie that are in the order of their keys, and which rows do; None if no row can.

    No two keys have the same place. One of the numbers may have 64 bits, of which then only so many count as are left.
    """
    widths = [values.type.bit_width for values in keys]
    left = _BITS - sum(width for width in widths if width < _WIDE)
    if left < (_FEWEST_BITS if _WIDE in widths else 0) or widths.count(_WIDE) > 1:
        return None
    places, fits = np.zeros(len(keys[0]), np.int64), np.ones(len(keys[0]), bool)
    for values, width in zip(keys, widths, strict=True):
        bits = left if width == _WIDE else width
        fits &= values.is_valid().to_numpy(zero_copy_only=False)
        numbers = pc.fill_null(values, pa.scalar(0, values.type)).to_numpy(zero_copy_only=False)
        first = -(1 << (bits - 1)) if numbers.dtype.kind == "i" else 0
        if width == _WIDE:
            fits &= (numbers >= first) & (numbers < first + (1 << bits))
        places = (places << bits) + (np.where(fits, numbers, 0).astype(np.int64) - first)
    return places + _FIRST_PLACE, fits


def _places_of_texts(texts: pa.StringArray) -> npt.NDArray[np.int64]:
    digests = b"".join(blake2b(text, digest_size=8).digest() for text in texts.cast(pa.binary()).to_pylist())
    return (np.frombuffer(digests, ">u8") >> np.uint64(3)).astype(np.int64) + _FIRST_OF_TEXTS
