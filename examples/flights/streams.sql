CREATE DATABASE nyc VGROUPS 2 KEEP 36500d;
USE nyc;

CREATE STABLE flights (ts TIMESTAMP, dep_delay DOUBLE, arr_delay DOUBLE, distance INT, flight INT, dest VARCHAR(3))
    TAGS (carrier VARCHAR(2), origin VARCHAR(3));
CREATE STABLE weather (ts TIMESTAMP, temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE)
    TAGS (station VARCHAR(3));

-- How busy and how late each airport is, hour by hour; an hour is final once nothing older than 1 hour may come.
CREATE STREAM hourly_departures TRIGGER WINDOW_CLOSE WATERMARK 1h IGNORE EXPIRED 0 IGNORE UPDATE 0
    INTO departures_per_hour TAGS (origin VARCHAR(3))
    AS SELECT _wstart AS ts, count(*) AS planned, count(dep_delay) AS departed, avg(dep_delay) AS mean_delay
       FROM flights PARTITION BY origin INTERVAL(1h);

-- The worst delay of the day per carrier, updated as soon as it gets worse.
CREATE STREAM worst_delays TRIGGER AT_ONCE WATERMARK 1h IGNORE EXPIRED 0 IGNORE UPDATE 0
    INTO worst_delay_per_day TAGS (carrier VARCHAR(2))
    AS SELECT _wstart AS ts, max(dep_delay) AS worst_delay, count(*) AS flights
       FROM flights PARTITION BY carrier INTERVAL(1d);

-- Daily extremes of the weather, per station, by the calendar of New York: two days of the year have 23 and 25 hours.
CREATE STREAM weather_extremes TRIGGER WINDOW_CLOSE WATERMARK 3h IGNORE EXPIRED 0 IGNORE UPDATE 0
    INTO weather_per_day TAGS (station VARCHAR(3))
    AS SELECT _wstart AS ts, min(temp) AS coldest, max(temp) AS warmest, max(wind_speed) AS windiest, sum(precip) AS rain
       FROM weather PARTITION BY station INTERVAL(1d);

-- How many flights there were to each destination so far, how many of them arrived, and how far they went: no window.
CREATE STREAM destinations INTO flights_to AS SELECT dest, count(*) AS flights, count(arr_delay) AS arrived,
    sum(distance) AS miles FROM flights GROUP BY dest;
