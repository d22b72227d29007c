"""A year of departures from New York through three streams, each checked against the batch answer."""
