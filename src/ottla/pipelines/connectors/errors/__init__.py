"""Rows that fail, and everything that must not be taken for one.

outages.py   what a failure means: an outage, a row, or a mistake in the pipeline
bisect.py    which rows are to blame: what to probe next
policy.py    when to try again, and when to stop
letters.py   the dead-letter topic
"""
