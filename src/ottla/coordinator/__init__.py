"""Replicated state machines over internal topics: a shard per partition, a host that feeds them."""
