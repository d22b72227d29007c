-- Given when the streams have caught up, since it works on what they have read.
RECALCULATE STREAM corrected FROM '2024-03-01T00:00:00Z';
