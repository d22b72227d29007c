-- What the example of docs/containers.md finds in PostgreSQL: devices to look up, and a table for results.
CREATE TABLE devices (id integer PRIMARY KEY, site text NOT NULL);
INSERT INTO devices VALUES (1, 'north'), (2, 'south');
