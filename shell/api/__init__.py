"""Penstock from a program: DB-API, SQLAlchemy's dialect, the row writer, the Spark source.

Imports of this part: flight_sql.
"""
