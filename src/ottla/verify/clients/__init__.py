"""Clients of the harness: they say in the history what they asked for and what they were told."""
