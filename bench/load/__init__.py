"""The clients of the bench. Each measurement runs as `python -m bench.load NAME` in a new process.

The arguments come as one JSON object on the command line, the result leaves as one JSON object on
standard output, so the same client code meets both brokers and no state is carried over.
"""
