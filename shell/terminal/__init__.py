"""The shell that people type into: prompt, completion, tables, bars, `penstock top`.

Imports of this part: api and flight_sql.
"""
