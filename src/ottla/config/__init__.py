"""Settings as data: every one declared once, with its type, default, limits and documentation."""
