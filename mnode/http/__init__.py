"""HTTP: SQL, line protocol, metrics and the web page.

Imports of this part: show and what is below.
"""
