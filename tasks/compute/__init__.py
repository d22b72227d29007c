"""Computation of rows and partials: DuckDB, kernels, user-defined functions, dense ids, lateness.

Imports of this part: protocol and state.
"""
