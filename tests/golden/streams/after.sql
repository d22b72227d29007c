-- autumn: the evening
INSERT INTO
    m0 VALUES ('2024-10-26T22:55:30+02:00', 1, 0.5, 'on', NULL) ('2024-10-26T22:56:10+02:00', 0, 10.0, NULL, false)
        ('2024-10-26T23:05:40+02:00', 2, 1.25, NULL, false)
    m1 VALUES ('2024-10-26T22:21:00+02:00', -1, 3.5, 'on', false) ('2024-10-26T23:13:10+02:00', 2, 100.125, 'on', false)
        ('2024-10-26T23:26:00+02:00', 2, 3.5, 'on', NULL)
    m2 VALUES ('2024-10-26T22:06:40+02:00', -1, 1.25, 'off', true) ('2024-10-26T22:30:10+02:00', 1, 0.0, 'off', NULL)
        ('2024-10-26T22:44:10+02:00', 1, 1.25, 'off', false)
    m3 VALUES ('2024-10-26T22:04:50+02:00', 1, 1.25, 'off', false) ('2024-10-26T22:08:20+02:00', 7, 10.0, 'off', true)
        ('2024-10-26T22:34:30+02:00', 0, NULL, 'off', false)
    m4 VALUES ('2024-10-26T22:28:20+02:00', 7, 10.0, NULL, true) ('2024-10-26T22:58:10+02:00', 0, 3.5, 'on', NULL)
        ('2024-10-26T23:15:00+02:00', -4, NULL, 'on', false)
    m5 VALUES ('2024-10-26T22:32:00+02:00', NULL, 100.125, NULL, NULL) ('2024-10-26T22:38:20+02:00', -1, 3.5, NULL, false)
        ('2024-10-26T23:18:40+02:00', -1, 1.25, 'on', false);

-- every table has the same newest row, so that what is late doesn't depend on who shares a vnode
INSERT INTO
    m0 VALUES ('2024-10-27T00:00:00+02:00', 0, 100.125, NULL, false)
    m1 VALUES ('2024-10-27T00:00:00+02:00', -1, 100.125, 'on', false)
    m2 VALUES ('2024-10-27T00:00:00+02:00', NULL, -2.75, 'off', NULL)
    m3 VALUES ('2024-10-27T00:00:00+02:00', 7, 0.5, 'off', false)
    m4 VALUES ('2024-10-27T00:00:00+02:00', 7, NULL, 'on', true)
    m5 VALUES ('2024-10-27T00:00:00+02:00', 8, 10.0, 'on', true);

-- the hour that comes twice, from 00:00 UTC on
INSERT INTO
    m0 VALUES ('2024-10-27T02:04:10+02:00', -4, 100.125, NULL, false) ('2024-10-27T02:42:20+02:00', 3, 0.0, NULL, true)
        ('2024-10-27T02:49:10+02:00', -1, 0.5, NULL, NULL) ('2024-10-27T02:52:30+02:00', 7, 0.5, 'off', NULL)
    m1 VALUES ('2024-10-27T02:02:10+02:00', 7, NULL, 'on', true) ('2024-10-27T02:08:20+02:00', 0, 100.125, 'on', true)
        ('2024-10-27T02:10:40+02:00', 8, 100.125, 'on', NULL) ('2024-10-27T02:26:40+02:00', 7, 3.5, 'on', true)
    m2 VALUES ('2024-10-27T02:26:40+02:00', 3, 1.25, 'off', true) ('2024-10-27T02:39:50+02:00', -1, 1.25, 'off', false)
        ('2024-10-27T02:42:40+02:00', -1, 1.25, 'off', NULL) ('2024-10-27T02:58:40+02:00', 3, 0.0, 'off', NULL);

-- its second time
INSERT INTO
    m2 VALUES ('2024-10-27T02:08:20+01:00', -4, 3.5, 'off', NULL) ('2024-10-27T02:17:40+01:00', -4, -2.75, 'off', false)
        ('2024-10-27T02:19:30+01:00', -4, 0.0, 'off', NULL) ('2024-10-27T02:26:30+01:00', -4, 0.0, 'idle', false)
    m3 VALUES ('2024-10-27T02:12:10+01:00', 2, 3.5, 'on', NULL) ('2024-10-27T02:27:00+01:00', -4, 10.0, 'on', false)
        ('2024-10-27T02:44:00+01:00', 2, 10.0, 'on', false) ('2024-10-27T02:53:30+01:00', NULL, 0.0, 'on', false)
    m4 VALUES ('2024-10-27T02:01:30+01:00', 5, -2.75, 'on', false) ('2024-10-27T02:03:30+01:00', 8, 1.25, 'on', false)
        ('2024-10-27T02:32:20+01:00', 7, 3.5, 'off', NULL) ('2024-10-27T02:35:00+01:00', NULL, 1.25, 'off', true)
    m5 VALUES ('2024-10-27T02:05:20+01:00', -1, 0.5, NULL, true) ('2024-10-27T02:10:00+01:00', 1, NULL, 'idle', true)
        ('2024-10-27T02:14:30+01:00', 8, 100.125, 'idle', false) ('2024-10-27T02:48:00+01:00', 5, 0.5, 'off', false);

-- again: all tables are equally far
INSERT INTO
    m0 VALUES ('2024-10-27T03:10:00+01:00', NULL, 0.5, 'off', true)
    m1 VALUES ('2024-10-27T03:10:00+01:00', 5, 1.25, 'on', NULL)
    m2 VALUES ('2024-10-27T03:10:00+01:00', 8, -2.75, 'idle', NULL)
    m3 VALUES ('2024-10-27T03:10:00+01:00', -4, 0.5, 'on', false)
    m4 VALUES ('2024-10-27T03:10:00+01:00', 5, -2.75, 'off', NULL)
    m5 VALUES ('2024-10-27T03:10:00+01:00', -1, 10.0, 'off', false);

-- rows on the borders of hours, of days and of sessions
INSERT INTO
    m0 VALUES ('2024-10-27T02:00:00+02:00', 0, 1.25, 'off', NULL) ('2024-10-27T02:00:00+01:00', 0, 0.0, 'off', false)
        ('2024-10-27T00:00:00+02:00', NULL, 100.125, 'off', true)
    m3 VALUES ('2024-10-27T02:00:00+02:00', 3, 10.0, NULL, NULL) ('2024-10-27T02:00:00+01:00', NULL, 0.5, NULL, true)
        ('2024-10-27T00:00:00+02:00', 2, 100.125, NULL, false);

-- again: all tables are equally far
INSERT INTO
    m0 VALUES ('2024-10-27T03:30:00+01:00', -4, NULL, 'off', true)
    m1 VALUES ('2024-10-27T03:30:00+01:00', 3, 0.5, NULL, true)
    m2 VALUES ('2024-10-27T03:30:00+01:00', 8, 1.25, 'idle', false)
    m3 VALUES ('2024-10-27T03:30:00+01:00', 7, NULL, NULL, false)
    m4 VALUES ('2024-10-27T03:30:00+01:00', 0, 0.5, 'off', false)
    m5 VALUES ('2024-10-27T03:30:00+01:00', 5, 0.5, NULL, NULL);

-- updates: whole rows, parts of rows, NULL in place of a value, and a key twice in one statement
INSERT INTO
    m0 VALUES ('2024-10-27T02:00:00+02:00', 5, 0.0, 'off', NULL) ('2024-10-27T02:00:00+02:00', 7, NULL, 'off', NULL)
    m3 VALUES ('2024-10-27T02:00:00+01:00', 1, -2.75, NULL, NULL);

-- of columns alone
INSERT INTO m1 (ts, v) VALUES ('2024-10-27T00:00:00+02:00', 11) m4 (ts, f, s) VALUES ('2024-10-27T03:30:00+01:00', NULL, NULL)
    m5 (ts, ok) VALUES ('2024-10-27T00:00:00+02:00', true);

-- late rows, by hours
INSERT INTO
    m5 VALUES ('2024-10-26T22:05:00+02:00', NULL, 0.5, NULL, NULL) ('2024-10-27T01:40:00+02:00', NULL, 0.5, NULL, NULL)
    m1 VALUES ('2024-10-27T02:10:00+02:00', 7, 1.25, NULL, false) ('2024-10-26T23:59:59+02:00', 0, 100.125, NULL, NULL);

-- late by months: a season that was over
INSERT INTO
    m4 VALUES ('2024-03-31T01:20:00+01:00', NULL, NULL, 'off', NULL) ('2024-03-31T11:00:00+02:00', 3, 0.5, 'idle', false)
    m2 VALUES ('2024-06-15T14:00:00+02:00', 0, 0.0, 'idle', true);

-- a table's whole evening goes, among it rows that were rewritten
DELETE FROM m3 WHERE ts >= '2024-10-26T20:00:00Z' AND ts <= '2024-10-26T21:00:00Z';

-- a range of all tables
DELETE FROM meters WHERE ts > '2024-10-27T01:20:00Z' AND ts < '2024-10-27T01:35:00Z';

-- rows come back into a deleted range
INSERT INTO
    m3 VALUES ('2024-10-26T22:30:00+02:00', -4, NULL, NULL, false) ('2024-10-27T02:30:00+01:00', 7, 0.5, NULL, NULL)
    m5 VALUES ('2024-10-27T02:25:00+01:00', -4, 3.5, NULL, false);

-- by tags
DELETE FROM meters WHERE site = 'hill' AND ts >= '2024-10-27T00:00:00Z' AND ts < '2024-10-27T00:05:00Z';

-- the morning
INSERT INTO
    m0 VALUES ('2024-10-27T04:02:40+01:00', 1, -2.75, 'off', false) ('2024-10-27T04:16:00+01:00', 5, NULL, 'on', false)
        ('2024-10-27T04:57:00+01:00', NULL, 10.0, NULL, NULL) ('2024-10-27T05:39:50+01:00', NULL, 0.5, NULL, false)
        ('2024-10-27T06:03:40+01:00', -4, NULL, NULL, false) ('2024-10-27T06:18:10+01:00', 8, NULL, NULL, NULL)
    m1 VALUES ('2024-10-27T04:58:10+01:00', -4, NULL, NULL, false) ('2024-10-27T05:18:30+01:00', 5, 1.25, NULL, false)
        ('2024-10-27T05:32:00+01:00', -4, 100.125, NULL, false) ('2024-10-27T05:42:00+01:00', 8, 0.5, NULL, NULL)
        ('2024-10-27T05:48:30+01:00', 5, 1.25, NULL, false) ('2024-10-27T06:47:10+01:00', 3, 3.5, 'on', true)
    m2 VALUES ('2024-10-27T04:01:20+01:00', 7, 0.5, 'idle', true) ('2024-10-27T04:44:20+01:00', -4, 0.5, 'idle', false)
        ('2024-10-27T04:57:10+01:00', 5, -2.75, 'idle', false) ('2024-10-27T06:22:50+01:00', 3, NULL, 'idle', NULL)
        ('2024-10-27T06:33:50+01:00', 7, 100.125, 'idle', true) ('2024-10-27T06:46:10+01:00', 8, 10.0, 'idle', true)
    m3 VALUES ('2024-10-27T04:22:30+01:00', 0, 1.25, NULL, NULL) ('2024-10-27T05:13:50+01:00', -4, 0.5, NULL, NULL)
        ('2024-10-27T06:01:10+01:00', 5, 0.0, 'off', true) ('2024-10-27T06:21:10+01:00', 8, 10.0, 'on', false)
        ('2024-10-27T06:34:20+01:00', 0, NULL, 'off', false) ('2024-10-27T06:36:00+01:00', 1, 3.5, 'on', NULL)
    m4 VALUES ('2024-10-27T04:02:40+01:00', -1, 100.125, 'idle', true) ('2024-10-27T04:05:30+01:00', 8, 1.25, 'idle', true)
        ('2024-10-27T04:35:30+01:00', 0, -2.75, 'idle', true) ('2024-10-27T04:48:30+01:00', NULL, 0.5, 'off', false)
        ('2024-10-27T04:49:00+01:00', 2, -2.75, NULL, NULL) ('2024-10-27T06:55:20+01:00', 2, 10.0, 'off', false)
    m5 VALUES ('2024-10-27T04:04:50+01:00', -1, NULL, NULL, false) ('2024-10-27T04:16:50+01:00', 1, 1.25, NULL, true)
        ('2024-10-27T04:27:20+01:00', 7, 0.0, NULL, false) ('2024-10-27T05:30:10+01:00', -1, 100.125, NULL, false)
        ('2024-10-27T05:30:20+01:00', -4, 10.0, NULL, NULL) ('2024-10-27T06:17:50+01:00', 7, 3.5, NULL, false);

-- again: all tables are equally far
INSERT INTO
    m0 VALUES ('2024-10-27T07:00:00+01:00', -4, 0.0, NULL, true)
    m1 VALUES ('2024-10-27T07:00:00+01:00', 1, -2.75, 'off', false)
    m2 VALUES ('2024-10-27T07:00:00+01:00', 2, 1.25, 'idle', NULL)
    m3 VALUES ('2024-10-27T07:00:00+01:00', 3, 10.0, 'off', false)
    m4 VALUES ('2024-10-27T07:00:00+01:00', 5, -2.75, 'off', NULL)
    m5 VALUES ('2024-10-27T07:00:00+01:00', 5, 10.0, NULL, NULL);

-- one table in one vnode: each statement is one log record
INSERT INTO lone VALUES ('2024-10-27T02:00:00+02:00', 3, 1) ('2024-10-27T02:07:00+02:00', 2, 1) ('2024-10-27T02:15:00+02:00', 1, 1) ('2024-10-27T02:31:00+02:00', 1, 1);

-- rewritten rows count twice where IGNORE UPDATE 1 says so
INSERT INTO lone VALUES ('2024-10-27T02:15:00+02:00', NULL, 2) ('2024-10-27T02:31:00+02:00', 4, 2) ('2024-10-27T02:40:00+02:00', 4, 2) ('2024-10-27T02:01:00+01:00', 1, 2);

-- late
INSERT INTO lone VALUES ('2024-10-27T02:05:00+02:00', 1, 3) ('2024-10-27T02:10:00+01:00', 3, 3) ('2024-10-27T02:35:00+01:00', 2, 3) ('2024-10-27T02:02:00+01:00', 2, 3);

-- late, on the border
INSERT INTO lone VALUES ('2024-10-27T02:20:00+02:00', 2, 4) ('2024-10-27T02:00:00+01:00', 2, 4) ('2024-10-27T03:00:00+01:00', 1, 4) ('2024-10-27T03:01:00+01:00', 3, 4);

-- the end
INSERT INTO lone VALUES ('2024-10-29T13:00:00+01:00', NULL, 5);

-- ticks in order
INSERT INTO ticks VALUES ('2024-10-27T02:00:00+02:00', 3) ('2024-10-27T02:04:00+02:00', 3) ('2024-10-27T02:09:00+02:00', 2) ('2024-10-27T02:25:00+02:00', 1) ('2024-10-27T02:33:00+02:00', 2) ('2024-10-27T02:59:00+02:00', 1);

-- ticks in order
INSERT INTO ticks VALUES ('2024-10-27T02:00:00+01:00', NULL) ('2024-10-27T02:04:00+01:00', 1) ('2024-10-27T02:09:00+01:00', 1) ('2024-10-27T02:25:00+01:00', 1) ('2024-10-27T02:33:00+01:00', 1) ('2024-10-27T02:59:00+01:00', 3);

-- ticks in order
INSERT INTO ticks VALUES ('2024-10-27T03:00:00+01:00', 1) ('2024-10-27T03:04:00+01:00', 2) ('2024-10-27T03:09:00+01:00', 2) ('2024-10-27T03:25:00+01:00', NULL) ('2024-10-27T03:33:00+01:00', 1) ('2024-10-27T03:59:00+01:00', NULL);

-- the end
INSERT INTO ticks VALUES ('2024-10-29T13:00:00+01:00', 0);

-- several rows of one time, told apart by their key
INSERT INTO o0 VALUES ('2024-10-27T02:30:00+02:00', 1, 5) ('2024-10-27T02:30:00+02:00', 2, 6) ('2024-10-27T02:30:00+02:00', 3, -1) o1 VALUES ('2024-10-27T02:30:00+02:00', 1, 7) ('2024-10-27T02:30:00+01:00', 1, 8);

-- rewritten, and new
INSERT INTO o0 VALUES ('2024-10-27T02:30:00+02:00', 2, -6) ('2024-10-27T02:30:00+02:00', 4, 9) o1 VALUES ('2024-10-27T02:30:00+01:00', 2, 4);

-- all rows of a time go
DELETE FROM o1 WHERE ts = '2024-10-27T02:30:00+02:00';

-- the end of the time line in every table: what came before is closed
INSERT INTO
    m0 VALUES ('2024-10-29T13:00:00+01:00', -4, 3.5, 'end', false)
    m1 VALUES ('2024-10-29T13:00:00+01:00', 5, 10.0, 'end', true)
    m2 VALUES ('2024-10-29T13:00:00+01:00', 1, 10.0, 'end', true)
    m3 VALUES ('2024-10-29T13:00:00+01:00', 2, 100.125, 'end', true)
    m4 VALUES ('2024-10-29T13:00:00+01:00', 3, NULL, 'end', NULL)
    m5 VALUES ('2024-10-29T13:00:00+01:00', -4, 10.0, 'end', NULL);

-- after the end: late rows, an update and a delete
INSERT INTO
    m0 VALUES ('2024-10-27T05:44:44+01:00', 1, 100.125, 'off', true)
    m2 VALUES ('2024-10-27T07:00:00+01:00', NULL, 1.25, 'idle', false) ('2024-10-28T04:00:00+01:00', 0, 1.25, NULL, NULL);

-- and the last
DELETE FROM m5 WHERE ts >= '2024-10-27T04:00:00Z' AND ts < '2024-10-27T05:00:00Z';

-- the last rows: everything is closed
INSERT INTO
    m0 VALUES ('2024-11-05T13:00:00+01:00', 3, 3.5, 'end', NULL)
    m1 VALUES ('2024-11-05T13:00:00+01:00', 0, 1.25, 'end', NULL)
    m2 VALUES ('2024-11-05T13:00:00+01:00', 0, 100.125, 'end', false)
    m3 VALUES ('2024-11-05T13:00:00+01:00', 3, 0.5, 'end', false)
    m4 VALUES ('2024-11-05T13:00:00+01:00', 7, 100.125, 'end', false)
    m5 VALUES ('2024-11-05T13:00:00+01:00', -1, 10.0, 'end', true);
INSERT INTO lone VALUES ('2024-11-05T13:00:00+01:00', 0, 6);
INSERT INTO ticks VALUES ('2024-11-05T13:00:00+01:00', 0);
INSERT INTO o0 VALUES ('2024-11-05T13:00:00+01:00', 1, 1);
