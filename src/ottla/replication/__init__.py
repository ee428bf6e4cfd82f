"""Many logs become partitions that are led, followed and fetched."""
