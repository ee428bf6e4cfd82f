"""Running a pipeline: one process, one Spark session, one query.

run.py          from the file's values to a query, and to its end
home.py         the pipeline's folder: what survives a run, and what others may ask of it
lock.py         one driver at a time on this machine
member.py       one driver at a time in the whole cluster, and the group that shows its progress
checkpoint.py   what Spark keeps of finished and unfinished batches
offsets.py      the checkpoint beside the group; moving both
changes.py      whether a query is the one that a checkpoint was made by
gate.py         a stop that waits for the batch
progress.py     how fast, how far behind, what went wrong
metrics.py      the same for Prometheus
spark.py        its session, here or on a cluster
executors.py    whether a cluster has anybody to run it
jvm.py          a JVM that leaves signals to its driver
"""
