"""Partition logs on disk, in Kafka's own format. `log.Log` and `directory.LogDirectories` are the
names that others use."""
