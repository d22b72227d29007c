"""A task's state: the store in LMDB, how values are written, copied and checked.

Imports of this part: protocol.
"""
