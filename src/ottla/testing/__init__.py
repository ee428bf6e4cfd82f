"""The public test kit: disks, clocks and brokers that fail when told to."""
