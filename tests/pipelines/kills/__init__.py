"""Three pipelines under kills: the parts of `run.py`, which says what it proves."""
