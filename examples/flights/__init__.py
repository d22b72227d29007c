"""A year of departures from New York through four streams, each checked against the batch answer."""
