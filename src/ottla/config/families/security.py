"""Who may connect and what they may do: SASL, delegation tokens, authorization."""

from __future__ import annotations

from ottla.config.declare import (
    Settings,
    boolean,
    class_name,
    double,
    integer,
    long,
    names,
    password,
    short,
    string,
)
from ottla.config.rules import at_least, distinct, one_of


class SecuritySettings(Settings):
    """Authentication, authorization, delegation tokens."""

    authorizer_class_name: str = string(
        default="",
        importance="low",
        effect="later",
        doc="Which authorizer decides who may do what; empty allows everything.",
    )
    connection_failed_authentication_delay_ms: int = integer(
        default=100,
        rule=at_least(0),
        importance="low",
        effect="later",
        doc="Delay before a connection is closed after failed authentication, against guessing. "
        "Must be below connections.max.idle.ms.",
    )
    connections_max_reauth_ms: int = long(
        default=0,
        effect="later",
        doc="Longest session after SASL authentication before a client must authenticate again; 0"
        " is no limit.",
    )
    delegation_token_expiry_check_interval_ms: int = long(
        default=3_600_000,
        rule=at_least(1),
        importance="low",
        effect="later",
        doc="How often expired delegation tokens are removed.",
    )
    delegation_token_expiry_time_ms: int = long(
        default=86_400_000,
        rule=at_least(1),
        effect="later",
        doc="How long a delegation token is valid unless it is renewed.",
    )
    delegation_token_max_lifetime_ms: int = long(
        default=604_800_000,
        rule=at_least(1),
        effect="later",
        doc="Age beyond which a delegation token cannot be renewed.",
    )
    delegation_token_secret_key: str | None = password(
        default=None,
        effect="later",
        doc="Secret that signs delegation tokens; the same on every broker.",
    )
    principal_builder_class: str = class_name(
        default="org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        update="per-broker",
        effect="none",
        doc="A Java class that turns a connection's identity into a principal.",
    )
    sasl_client_callback_handler_class: str | None = class_name(
        default=None,
        effect="none",
        doc="A Java class that answers SASL's questions on the client side of brokers.",
    )
    sasl_enabled_mechanisms: tuple[str, ...] = names(
        default=("GSSAPI",),
        rule=distinct(),
        update="per-broker",
        effect="later",
        doc="SASL mechanisms offered to clients.",
    )
    sasl_jaas_config: str | None = password(
        default=None,
        update="per-broker",
        effect="later",
        doc="Login modules and credentials of a listener and mechanism, in JAAS form.",
    )
    sasl_kerberos_kinit_cmd: str = string(
        default="/usr/bin/kinit",
        update="per-broker",
        effect="none",
        doc="Path of Kerberos' kinit.",
    )
    sasl_kerberos_min_time_before_relogin: int = long(
        default=60_000,
        update="per-broker",
        effect="none",
        doc="Pause between Kerberos log-in attempts.",
    )
    sasl_kerberos_principal_to_local_rules: tuple[str, ...] = names(
        default=("DEFAULT",),
        rule=distinct(),
        update="per-broker",
        effect="none",
        doc="Rules that shorten Kerberos principals to user names.",
    )
    sasl_kerberos_service_name: str | None = string(
        default=None,
        update="per-broker",
        effect="none",
        doc="Kerberos service name of the brokers.",
    )
    sasl_kerberos_ticket_renew_jitter: float = double(
        default=0.05,
        update="per-broker",
        effect="none",
        doc="Random part added to a Kerberos ticket's renewal time.",
    )
    sasl_kerberos_ticket_renew_window_factor: float = double(
        default=0.8,
        update="per-broker",
        effect="none",
        doc="Share of a Kerberos ticket's life after which it is renewed.",
    )
    sasl_login_callback_handler_class: str | None = class_name(
        default=None,
        effect="none",
        doc="A Java class that answers SASL's questions at log-in.",
    )
    sasl_login_class: str | None = class_name(
        default=None,
        effect="none",
        doc="A Java class that logs in.",
    )
    sasl_login_connect_timeout_ms: int | None = integer(
        default=None,
        importance="low",
        effect="later",
        doc="Longest wait for a connection to the identity provider.",
    )
    sasl_login_read_timeout_ms: int | None = integer(
        default=None,
        importance="low",
        effect="later",
        doc="Longest wait for the identity provider's answer.",
    )
    sasl_login_refresh_buffer_seconds: int = short(
        default=300,
        update="per-broker",
        effect="later",
        doc="Time before a credential expires by which it must have been refreshed.",
    )
    sasl_login_refresh_min_period_seconds: int = short(
        default=60,
        update="per-broker",
        effect="later",
        doc="Shortest time between two refreshes of a credential.",
    )
    sasl_login_refresh_window_factor: float = double(
        default=0.8,
        update="per-broker",
        effect="later",
        doc="Share of a credential's life after which it is refreshed.",
    )
    sasl_login_refresh_window_jitter: float = double(
        default=0.05,
        update="per-broker",
        effect="later",
        doc="Random part added to a credential's refresh time.",
    )
    sasl_login_retry_backoff_max_ms: int = long(
        default=10_000,
        importance="low",
        effect="later",
        doc="Longest pause between log-in attempts.",
    )
    sasl_login_retry_backoff_ms: int = long(
        default=100,
        importance="low",
        effect="later",
        doc="First pause between log-in attempts.",
    )
    sasl_mechanism_controller_protocol: str = string(
        default="GSSAPI",
        importance="high",
        effect="none",
        doc="SASL mechanism towards Kafka's controllers.",
    )
    sasl_mechanism_inter_broker_protocol: str = string(
        default="GSSAPI",
        update="per-broker",
        effect="later",
        doc="SASL mechanism that brokers use among themselves.",
    )
    sasl_server_callback_handler_class: str | None = class_name(
        default=None,
        effect="none",
        doc="A Java class that answers SASL's questions on the server side.",
    )
    sasl_server_max_receive_size: int = integer(
        default=524_288,
        effect="later",
        doc="Longest SASL message accepted before a client is authenticated.",
    )
    security_inter_broker_protocol: str = string(
        default="PLAINTEXT",
        rule=one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        doc="Security protocol among brokers; its listener is the one of the same name. Not to be"
        " given together with inter.broker.listener.name.",
    )
    security_providers: str | None = string(
        default=None,
        importance="low",
        effect="none",
        doc="Java classes that bring security algorithms.",
    )

    # Read by Kafka's own authorizer rather than by its broker; never listed.
    super_users: str = string(
        default="",
        effect="later",
        internal=True,
        foreign=True,
        doc="Principals who may do everything, separated by semicolons, as User:name.",
    )
    allow_everyone_if_no_acl_found: bool = boolean(
        default=False,
        effect="later",
        internal=True,
        foreign=True,
        doc="Allow access to resources for which there are no access rules at all.",
    )
