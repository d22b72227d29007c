"""Writing a store: records applied, flushed, compacted; definitions, children moved, the log kept.

Imports of this part: read and store.
"""
