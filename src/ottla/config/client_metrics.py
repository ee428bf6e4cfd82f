"""The settings of a subscription to clients' metrics (KIP-714)."""

from __future__ import annotations

from ottla.config.declare import Settings, integer, names


class ClientMetricsConfig(Settings):
    """The settings of one subscription. `ClientMetricsConfig()` has Kafka's defaults."""

    interval_ms: int = integer(
        default=300_000,
        doc="How often clients push, from 100 ms to an hour. Of several subscriptions that a "
        "client matches the shortest interval counts.",
    )
    match: tuple[str, ...] = names(
        default=(),
        doc="Which clients: `selector=pattern` pairs that all have to match. Selectors are "
        "`client_instance_id`, `client_id`, `client_software_name`, `client_software_version`, "
        "`client_source_address` and `client_source_port`. None: all clients.",
    )
    metrics: tuple[str, ...] = names(
        default=(),
        doc="Which metrics: prefixes of their names; `*` for all. None: nothing is pushed.",
    )
