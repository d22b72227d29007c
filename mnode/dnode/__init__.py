"""The dnode: directories of vnodes, logs and tables served to workers, cuts of streams.

Imports of this part: access and what is below.
"""
