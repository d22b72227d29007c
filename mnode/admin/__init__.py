"""Tools for a whole data directory: dump, restore, fsck, catalog rebuild, sandboxes, dry runs.

Imports of this part: every other room, and the engine.
"""
