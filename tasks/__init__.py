"""Stream tasks: source, agg, sink; their queues, exchange, watermarks, windows, state; and the Spark edge."""
