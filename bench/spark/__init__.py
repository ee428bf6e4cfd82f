"""`format("ottla")` beside Spark's own Kafka connector: one Spark, one broker, the same topics."""
