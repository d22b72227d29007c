-- Messages of Kafka become rows, find their site in PostgreSQL, and leave as means per site and minute.
CREATE DATABASE IF NOT EXISTS plant;
USE plant;
CREATE CONNECTION hall TYPE kafka WITH (servers='kafka:9092');
CREATE CONNECTION store TYPE postgres
    WITH (host='postgres', database='plant', username='pen', password='file:/run/secrets/postgres');
CREATE STABLE meters (ts TIMESTAMP, amps DOUBLE) TAGS (device INT);
CREATE INGEST readings FROM CONNECTION hall (TOPIC 'meters', FORMAT json)
    INTO meters (ts = $.time, amps = $.amps) TAGS (device = $.device) TBNAME ($.device);
CREATE STREAM load INTO CONNECTION store (TABLE 'load_of_sites') AS
    SELECT _wstart AS minute, d.site, avg(m.amps) AS amps
    FROM meters m JOIN CONNECTION store (TABLE 'devices') d ON m.device = d.id
    PARTITION BY d.site INTERVAL(1m);
