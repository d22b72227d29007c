"""Writing a store: applying records, flush, compaction, definitions, moving child tables, log retention.

Imports of this part: read and store.
"""
