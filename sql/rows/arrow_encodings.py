"""Arrow's encodings of one type as one: views, run ends, extensions and dictionaries of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def plain(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns the values in the type that they are of: texts and bytes without views, run ends decoded, extensions as
    what they are stored as. Dictionaries stay, over plain values.
    """
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain(values.cast(kind.storage_type))
    if pa.types.is_run_end_encoded(kind):
        return plain(pc.run_end_decode(values))
    if pa.types.is_string_view(kind):
        return values.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return values.cast(pa.large_binary())
    if pa.types.is_dictionary(kind):
        return _plain_dictionary(values)
    return values


def _plain_dictionary(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    value_type = plain(pa.array([], values.type.value_type)).type
    if value_type == values.type.value_type:
        return values
    wanted = pa.dictionary(values.type.index_type, value_type, values.type.ordered)
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    made = [pa.DictionaryArray.from_arrays(chunk.indices, plain(chunk.dictionary), ordered=values.type.ordered)
            for chunk in chunks]
    return pa.chunked_array(made, wanted) if isinstance(values, pa.ChunkedArray) else made[0]
