"""Checking and planning of CREATE STREAM and CREATE INGEST."""
