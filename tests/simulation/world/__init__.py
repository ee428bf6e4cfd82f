"""A whole cluster in one process, under virtual time: the product's own code in a simulated world.

loop        virtual time; whose code runs, and what it costs
ensemble    ZooKeeper: servers that lag, watches that come late, sessions that expire
network     connections between brokers: delay, resets, one-way cuts
disk        logs that survive a process, and lose their unsynced tails with the power
batch_log   logs of real batches, with what they know of producers
broker      one broker, put together as `ottla.broker.app` does it
cluster     all of them, and clients that write
invariants  what must hold after every step
requests    what clients ask, late and sometimes in vain
producers   clients that write in transactions
transactions  what must hold of these
offsets     readers of offsets committed in them, and what must hold of these
schedule    what goes wrong when, drawn from a seed, and shrunk
"""
