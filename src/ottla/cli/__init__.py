"""The command line: parse, call, print. What is called is the client, or, for what works on data
folders (`server`, `log`, `metadata`), the broker's own packages.

click and rich are imported in this package only, and each command's module only when that
command runs: `main.py` holds a table of names.
"""
