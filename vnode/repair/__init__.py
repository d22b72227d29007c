"""Checks a vnode on disk, and repairs it.

Imports of this part: all of vnode.
"""
