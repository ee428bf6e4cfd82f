"""Talking to brokers.

`producer`, `consumer`, `admin` and `asynchronous` are the typed face on librdkafka that users
see as `ottla.Producer` and so on. This package imports none of them by itself: the broker uses
the low-level connection that also lives here and must not load librdkafka for it.
"""
