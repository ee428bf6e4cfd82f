"""Bytes to handler and back. Knows every service and no handler."""
