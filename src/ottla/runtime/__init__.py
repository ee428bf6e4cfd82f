"""The outside world, behind small interfaces that are handed in: clock, files, loop, metrics."""
