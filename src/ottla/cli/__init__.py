"""The command line: parse, call the client, print. Nothing here knows more than that.

click and rich are imported in this package only, and each command's module only when that
command runs: `main.py` holds a table of names.
"""
