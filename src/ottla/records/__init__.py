"""Record batches: the one format that is the same on the wire and on disk. No I/O, no clock."""
