"""Arrow Flight SQL as a server: sessions, statements, metadata.

Imports of this part: terminal and what is below.
"""
