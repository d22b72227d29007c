"""State of a task: the LMDB store; encoding, copying and checking values.

Imports of this part: protocol.
"""
