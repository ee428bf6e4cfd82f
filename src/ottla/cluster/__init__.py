"""The cluster's shared memory: one small store interface, and typed operations on top of it."""
