"""Kafka's wire protocol, without I/O: declarations, compiled codecs, headers, the API table.

A message is declared once (`messages/`) in the small language of `schema`; `compiler` writes
straight-line Python for each (message, version) that is really used; `header` reads and writes
what precedes a body; `apis` says which messages and versions belong to which key.
"""
