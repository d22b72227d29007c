"""What a dnode does for the mnode: its vnodes' directories, logs and tables served to workers, cuts of streams.

Imports of this part: access and what is below.
"""
