"""Writing: what Spark asks of a sink, on the driver and in a task."""
