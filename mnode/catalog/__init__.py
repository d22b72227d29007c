"""The catalog: databases, tables, users, streams; its copies and its check.

`catalog.Catalog` is the whole: `table_index` in memory, a repository per kind of entity, one store of entries on disk.
`catalog_reader` reads the entries, for the engine and for other processes.

Imports of this part: nothing of mnode.
"""
