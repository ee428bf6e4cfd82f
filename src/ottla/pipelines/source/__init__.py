"""Reading: what Spark asks of a source, on the driver and in a task."""
