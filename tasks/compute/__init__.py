"""Rows to rows and to partials: DuckDB, kernels, users' functions, dense ids, lateness.

Imports of this part: protocol and state.
"""
