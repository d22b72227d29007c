"""Server for Arrow Flight SQL: sessions, statements, metadata.

Imports of this part: terminal and what is below.
"""
