"""Apache's own command-line tools and ours, typed at one broker and compared.

`commands/` holds what is typed, a file per family; `script.py` reads it, `stage.py` runs each line
twice, `compare.py` says where the two differ.
"""
