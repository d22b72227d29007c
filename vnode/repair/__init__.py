"""Check and repair of a vnode on disk.

Imports of this part: all of vnode.
"""
