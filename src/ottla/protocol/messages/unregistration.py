"""Forgetting a broker that is gone for good: UnregisterBroker (64)."""

from __future__ import annotations

from ottla.protocol.schema import int16, int32, message, string


@message(api_key=64, kind="request", versions="0", flexible="0+")
class UnregisterBrokerRequest:
    """Asks for a broker to be forgotten."""

    broker_id: int = int32()


@message(api_key=64, kind="response", versions="0", flexible="0+")
class UnregisterBrokerResponse:
    """Whether it is."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
