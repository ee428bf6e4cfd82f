"""The metadata store on Apache ZooKeeper: `store.py` is the door, `connection.py` that to kazoo."""
