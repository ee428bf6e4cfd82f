"""Messages that are written, not sent: the keys and values of Kafka's internal topics, and the two
structures that consumers of the classic protocol embed in JoinGroup and SyncGroup.

A key is preceded by two bytes that say which record it is (`api_key` here), a value by its version.
"""
