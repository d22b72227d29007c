-- Late changes that wait for the clock otherwise; given when the streams have caught up, since it works on what they have read.
RECALCULATE STREAM continuous FROM '2024-03-01T00:00:00Z';
