-- Telegraf's lines have nanoseconds. It would create the database itself; streams need the tables before the first line.
CREATE DATABASE IF NOT EXISTS telegraf PRECISION 'ns' VGROUPS 2 KEEP 36500d;
USE telegraf;

-- What else the lines have, columns and tags, is added when it comes.
CREATE STABLE IF NOT EXISTS cpu (_ts TIMESTAMP, usage_idle DOUBLE, usage_user DOUBLE, usage_system DOUBLE)
    TAGS (cpu NCHAR(16), host NCHAR(64));
CREATE STABLE IF NOT EXISTS mem (_ts TIMESTAMP, used_percent DOUBLE) TAGS (host NCHAR(64));

-- How busy each machine is, minute by minute. Telegraf sends every 10 seconds, so a minute is whole 20 seconds later.
CREATE STREAM busy_per_minute TRIGGER WINDOW_CLOSE WATERMARK 20s IGNORE EXPIRED 0 IGNORE UPDATE 0
    INTO cpu_minutes TAGS (host NCHAR(64))
    AS SELECT _wstart AS ts, 100 - avg(usage_idle) AS busy, 100 - min(usage_idle) AS busiest, count(*) AS measured
       FROM cpu WHERE cpu = 'cpu-total' PARTITION BY host INTERVAL(1m);

-- From when to when a machine had less than a tenth of its memory left, and how little it was.
CREATE STREAM memory_pressure TRIGGER WINDOW_CLOSE IGNORE EXPIRED 0 IGNORE UPDATE 0
    INTO memory_low TAGS (host NCHAR(64)) SUBTABLE(concat('low_', tbname))
    AS SELECT _wstart AS ts, _wend AS until, max(used_percent) AS worst
       FROM mem PARTITION BY tbname, host EVENT_WINDOW START WITH used_percent > 90 END WITH used_percent <= 90;
