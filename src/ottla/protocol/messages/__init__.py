"""The messages of Kafka 4.2, each declared once for all its versions; one module per API family.

Names are Kafka's in snake case. A module is imported when its API is first used; see
`ottla.protocol.apis`.
"""
