"""What the mnode knows for good: the store of databases, tables, users and streams, its copies, its check.

Imports of this part: nothing of mnode.
"""
