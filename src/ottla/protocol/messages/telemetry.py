"""What clients measure: GetTelemetrySubscriptions (71), PushTelemetry (72)."""

from __future__ import annotations

from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.schema import array, binary, boolean, int8, int16, int32, message, string, uuid


@message(api_key=71, kind="request", versions="0", flexible="0+")
class GetTelemetrySubscriptionsRequest:
    """Asks what to push; who has no id yet sends zeros and is given one."""

    client_instance_id: bytes = uuid()


@message(api_key=71, kind="response", versions="0", flexible="0+")
class GetTelemetrySubscriptionsResponse:
    """What to push, how often, and in which form. No metrics: nothing is wanted."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    client_instance_id: bytes = uuid(default=ZERO_UUID)
    subscription_id: int = int32(default=0)
    accepted_compression_types: list[int] = array(int8, factory=list)
    push_interval_ms: int = int32(default=0)
    telemetry_max_bytes: int = int32(default=0)
    delta_temporality: bool = boolean(default=False)
    requested_metrics: list[str] = array(string, factory=list)


@message(api_key=72, kind="request", versions="0", flexible="0+")
class PushTelemetryRequest:
    """Metrics in OpenTelemetry's format, compressed; `terminating` with the last ones."""

    client_instance_id: bytes = uuid()
    subscription_id: int = int32()
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: bytes = binary()


@message(api_key=72, kind="response", versions="0", flexible="0+")
class PushTelemetryResponse:
    """Whether they were taken."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
