"""Moves frames between sockets and whoever answers them. Knows no Kafka API."""
