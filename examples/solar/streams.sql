CREATE DATABASE solar VGROUPS 2 KEEP 36500d;
USE solar;

-- What each tracker reports every minute. `mode` comes from a register that holds numbers only: 0 night, 1 tracking,
-- 2 stowed because of wind.
CREATE STABLE trackers (ts TIMESTAMP, power DOUBLE, target DOUBLE, angle DOUBLE, wind DOUBLE, mode FLOAT)
    TAGS (site VARCHAR(8), device VARCHAR(8));

-- The best power and the worst error of each tracker, hour by hour, as soon as it is known.
CREATE STREAM hourly_peaks TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0
    INTO peaks_per_hour TAGS (site VARCHAR(8), device VARCHAR(8))
    AS SELECT _wstart AS ts, max(power) AS peak, max(abs(angle - target)) AS worst_error, count(*) AS readings
       FROM trackers PARTITION BY site, device INTERVAL(1h);

-- A day of the fields begins at 5 in the morning by the clock of the servers: a stream over the hourly results.
CREATE STREAM daily_peaks TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0
    INTO peaks_per_day TAGS (site VARCHAR(8))
    AS SELECT _wstart AS ts, max(peak) AS peak, avg(peak) AS mean_peak, max(worst_error) AS worst_error,
              sum(readings) AS readings
       FROM peaks_per_hour PARTITION BY site INTERVAL(1d, 5h);

-- A quarter of an hour, every five minutes: how much a field gives, and how many readings were in the sun.
CREATE STREAM quarters TRIGGER WINDOW_CLOSE WATERMARK 1h IGNORE EXPIRED 0 IGNORE UPDATE 0
    INTO power_per_quarter TAGS (site VARCHAR(8))
    AS SELECT _wstart AS ts, avg(power) AS mean_power, sum(CASE WHEN power > 1 THEN 1 ELSE 0 END) AS sunny,
              count(*) AS readings
       FROM trackers PARTITION BY site INTERVAL(15m) SLIDING(5m);

-- How long each tracker stays in a mode, and how strong the wind is meanwhile.
CREATE STREAM modes TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0
    INTO mode_changes TAGS (name VARCHAR(16))
    AS SELECT _wstart AS ts, _wduration AS lasted, first(mode) AS mode, max(wind) AS strongest_wind, count(*) AS readings
       FROM trackers PARTITION BY tbname name STATE_WINDOW(CAST(mode AS INT));
