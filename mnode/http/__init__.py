"""SQL, line protocol and metrics over HTTP, and the page for a browser.

Imports of this part: show and what is below.
"""
