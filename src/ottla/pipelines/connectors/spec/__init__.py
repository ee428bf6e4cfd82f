"""A pipeline's file: what it says, checked as a whole, before anything runs.

values.py   what a pipeline is, whoever has said it
"""
