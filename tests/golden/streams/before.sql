-- spring: evening before the change of time; rows of one table in order
INSERT INTO
    m0 VALUES ('2024-03-31T00:18:10+01:00', NULL, -2.75, NULL, false) ('2024-03-31T00:29:20+01:00', 1, 3.5, NULL, NULL)
        ('2024-03-31T00:38:50+01:00', NULL, 1.25, 'on', NULL)
    m1 VALUES ('2024-03-30T23:09:00+01:00', 5, 0.5, 'off', false) ('2024-03-30T23:30:00+01:00', -4, 0.5, 'off', true)
        ('2024-03-31T00:43:10+01:00', 5, 3.5, 'on', false)
    m2 VALUES ('2024-03-30T23:27:40+01:00', 3, 100.125, 'on', false) ('2024-03-30T23:52:40+01:00', -1, 0.0, 'on', false)
        ('2024-03-31T00:28:40+01:00', 7, -2.75, 'on', true)
    m3 VALUES ('2024-03-30T23:15:00+01:00', 3, 0.5, 'on', NULL) ('2024-03-31T00:19:40+01:00', -1, 0.5, 'on', false)
        ('2024-03-31T00:44:20+01:00', 7, 100.125, 'idle', false);

-- the night with the hour that is missing (01:00 UTC)
INSERT INTO
    m0 VALUES ('2024-03-31T01:06:20+01:00', 8, 1.25, 'on', NULL) ('2024-03-31T01:11:50+01:00', 0, 0.0, 'on', NULL)
        ('2024-03-31T01:25:20+01:00', -1, -2.75, 'on', NULL) ('2024-03-31T03:43:30+02:00', 2, 1.25, 'off', true)
    m1 VALUES ('2024-03-31T01:27:50+01:00', NULL, -2.75, 'idle', false) ('2024-03-31T01:29:20+01:00', 2, 0.0, 'idle', NULL)
        ('2024-03-31T01:42:30+01:00', 3, 10.0, 'idle', true) ('2024-03-31T01:57:30+01:00', 8, NULL, 'idle', false)
    m2 VALUES ('2024-03-31T01:04:50+01:00', 8, 0.0, NULL, true) ('2024-03-31T01:51:40+01:00', -4, 10.0, NULL, false)
        ('2024-03-31T01:53:10+01:00', -4, NULL, NULL, false) ('2024-03-31T03:01:50+02:00', 7, NULL, NULL, false)
    m3 VALUES ('2024-03-31T01:06:10+01:00', -4, NULL, 'off', true) ('2024-03-31T01:19:10+01:00', 1, 1.25, 'off', true)
        ('2024-03-31T03:27:50+02:00', NULL, 3.5, 'off', false) ('2024-03-31T03:40:20+02:00', 7, 0.0, 'off', false)
    m4 VALUES ('2024-03-31T01:04:50+01:00', 2, 100.125, 'off', NULL) ('2024-03-31T01:16:00+01:00', 2, 100.125, 'off', NULL)
        ('2024-03-31T01:50:10+01:00', 5, 100.125, 'off', NULL) ('2024-03-31T03:22:30+02:00', NULL, -2.75, 'off', false);

-- both sides of the jump, one row exactly at it; the same key twice in one statement
INSERT INTO
    m0 VALUES ('2024-03-31T01:59:59+01:00', 1, 0.0, 'off', false) ('2024-03-31T03:00:00+02:00', 7, NULL, 'on', false)
        ('2024-03-31T03:00:00+02:00', 0, -2.75, 'on', false)
    m1 VALUES ('2024-03-31T03:00:00+02:00', 8, 3.5, 'idle', true) ('2024-03-31T01:30:00+01:00', 1, 1.25, 'idle', true);

-- the morning, and late rows
INSERT INTO
    m0 VALUES ('2024-03-31T05:11:30+02:00', 2, 0.0, 'on', true) ('2024-03-31T07:04:10+02:00', 0, 10.0, 'on', NULL)
    m1 VALUES ('2024-03-31T06:03:40+02:00', 1, 0.0, 'on', NULL) ('2024-03-31T06:31:50+02:00', 1, 0.5, 'on', true)
    m2 VALUES ('2024-03-31T06:15:00+02:00', -4, -2.75, NULL, NULL) ('2024-03-31T06:45:30+02:00', -4, 0.5, 'off', NULL)
    m3 VALUES ('2024-03-31T05:40:10+02:00', 1, 10.0, 'off', false) ('2024-03-31T06:20:30+02:00', 8, -2.75, 'off', true)
    m4 VALUES ('2024-03-31T05:12:00+02:00', NULL, 0.5, NULL, NULL) ('2024-03-31T06:31:50+02:00', 3, -2.75, NULL, false)
    m5 VALUES ('2024-03-31T06:21:50+02:00', 2, 100.125, 'off', true) ('2024-03-31T06:58:30+02:00', NULL, 1.25, NULL, false)
    m2 VALUES ('2024-03-30T23:15:00+01:00', -1, 0.0, 'off', false);

-- a range of one table and a moment of all tables go
DELETE FROM m1 WHERE ts >= '2024-03-31T00:00:00Z' AND ts < '2024-03-31T00:40:00Z';
