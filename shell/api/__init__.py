"""Penstock from a program: DB-API, the row writer, the Spark source.

Imports of this part: flight_sql.
"""
