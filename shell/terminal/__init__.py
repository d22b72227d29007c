"""The interactive shell: prompt, completion, tables, progress bars, `penstock top`.

Imports of this part: api and flight_sql.
"""
