CREATE FUNCTION twice (BIGINT) RETURNS BIGINT LANGUAGE PYTHON AS 'functions:twice';
CREATE FUNCTION even (INT) RETURNS BOOL LANGUAGE PYTHON AS 'functions:even';
CREATE AGGREGATE FUNCTION scatter (INT) RETURNS BIGINT LANGUAGE PYTHON AS 'functions:Scatter';
CREATE AGGREGATE FUNCTION texts (VARCHAR) RETURNS VARCHAR(64) LANGUAGE PYTHON AS 'functions:Texts';

CREATE STABLE meters (ts TIMESTAMP, v INT, f DOUBLE, s VARCHAR(8), ok BOOL) TAGS (site NCHAR(8), floor INT);
CREATE TABLE m0 USING meters TAGS ('hill', 1);
CREATE TABLE m1 USING meters TAGS ('hill', 2);
CREATE TABLE m2 USING meters TAGS ('dale', 1);
CREATE TABLE m3 USING meters TAGS ('dale', NULL);
CREATE TABLE m4 USING meters TAGS (NULL, 2);
CREATE TABLE m5 USING meters TAGS ('sea', 3);

-- normal tables: each of their statements is one record of one log
CREATE TABLE lone (ts TIMESTAMP, v INT, step INT);
CREATE TABLE ticks (ts TIMESTAMP, v INT);

CREATE STABLE ovens (ts TIMESTAMP, k INT PRIMARY KEY, v INT) TAGS (g INT);
CREATE TABLE o0 USING ovens TAGS (0);
CREATE TABLE o1 USING ovens TAGS (1);

-- targets that streams find, with columns and tags that they leave alone
CREATE STABLE old_target (ts TIMESTAMP, n BIGINT, spare INT, high INT) TAGS (site NCHAR(8), spare_tag INT, tn VARCHAR(16));
CREATE STABLE other_target (ts TIMESTAMP, word VARCHAR(8), total DOUBLE) TAGS (floor INT);
