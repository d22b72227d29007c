"""Python API: DB-API, SQLAlchemy dialect, row writer, Spark data source.

Imports of this part: flight_sql.
"""
