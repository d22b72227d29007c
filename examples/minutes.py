"""The script of the README: a stream of means per minute and place, and three rows that close a window."""

import penstock

with penstock.connect("./penstock-data") as con:
    con.execute("CREATE DATABASE power VGROUPS 1")
    con.execute("CREATE STABLE power.meters (ts TIMESTAMP, amps DOUBLE) TAGS (place VARCHAR(16))")
    con.execute("""
        CREATE STREAM per_minute INTO power.minutes TAGS (place VARCHAR(16)) AS
        SELECT _wstart AS ts, count(*) AS readings, avg(amps) AS mean FROM power.meters PARTITION BY place INTERVAL(1m)
    """)
    for at, amps in [("10:00:05", 9.5), ("10:00:40", 10.5), ("10:01:10", 11.0)]:
        con.execute("INSERT INTO power.d1 USING power.meters TAGS ('Berlin') VALUES (?, ?)", (f"2024-05-01 {at}", amps))
    while not (rows := con.execute("SELECT place, ts, readings, mean FROM power.minutes").fetchall()):
        pass  # the third row closes the first minute, a moment after Spark has started
    print(rows)
