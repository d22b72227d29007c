"""Trackers of three solar fields through four streams, one of them over the results of another."""
