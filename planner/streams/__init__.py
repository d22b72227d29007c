"""CREATE STREAM and CREATE INGEST: what only streams have, checked and planned."""
