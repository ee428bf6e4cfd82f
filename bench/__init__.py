"""Ottla beside Apache Kafka, on one machine, in one run.

`python -m bench` alternates both brokers and writes medians and ratios; `python -m bench.segments`
and `python -m bench.migration` hold Apache's own tools and data against ours; `python -m
bench.interop` runs Apache's Java clients against ours. Apache Kafka comes from Maven into
`.cache/`; nothing else of the project needs Java.

An absolute number from a shared machine says little. What is claimed is always a ratio of medians
from rounds that alternate, with the same client code, every measurement in a fresh client process.
"""
