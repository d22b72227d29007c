"""Work on a whole directory: dump, restore, fsck, a catalog built anew, sandboxes and dry runs.

Imports of this part: every other room, and the engine.
"""
