"""Pipelines of a few lines: a source, a transform, a sink, and what to do with rows that fail.

contract.py   what a source, a sink and a format are
option.py     how their options are declared
catalog.py    the list of all of them
"""
