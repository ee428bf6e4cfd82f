"""TLS: certificates, keys, protocol versions. Kafka calls all of it ssl."""

from __future__ import annotations

from ottla.config.declare import Settings, boolean, class_name, names, password, string
from ottla.config.rules import distinct, one_of


class TlsSettings(Settings):
    """TLS, under its old name."""

    ssl_allow_dn_changes: bool = boolean(
        default=False,
        importance="low",
        effect="later",
        doc="Let a replaced certificate have another distinguished name.",
    )
    ssl_allow_san_changes: bool = boolean(
        default=False,
        importance="low",
        effect="later",
        doc="Let a replaced certificate lack some of the alternative names of the old one.",
    )
    ssl_cipher_suites: tuple[str, ...] = names(
        default=(),
        rule=distinct(),
        update="per-broker",
        effect="later",
        doc="Cipher suites that may be used; empty means the library's choice.",
    )
    ssl_client_auth: str = string(
        default="none",
        rule=one_of("required", "requested", "none"),
        update="per-broker",
        effect="later",
        doc="Whether clients must, may or need not show a certificate.",
    )
    ssl_enabled_protocols: tuple[str, ...] = names(
        default=("TLSv1.2", "TLSv1.3"),
        rule=distinct(),
        update="per-broker",
        effect="later",
        doc="TLS versions that may be used.",
    )
    ssl_endpoint_identification_algorithm: str = string(
        default="https",
        importance="low",
        update="per-broker",
        effect="later",
        doc="How a peer's host name is checked against its certificate; empty turns the check off.",
    )
    ssl_engine_factory_class: str | None = class_name(
        default=None,
        importance="low",
        update="per-broker",
        effect="none",
        doc="A Java class that makes TLS engines.",
    )
    ssl_key_password: str | None = password(
        default=None,
        update="per-broker",
        effect="later",
        doc="Password of the private key.",
    )
    ssl_keymanager_algorithm: str = string(
        default="SunX509",
        update="per-broker",
        effect="none",
        doc="Algorithm of Java's key manager.",
    )
    ssl_keystore_certificate_chain: str | None = password(
        default=None,
        update="per-broker",
        effect="later",
        doc="Certificate chain in PEM form, the broker's own first.",
    )
    ssl_keystore_key: str | None = password(
        default=None,
        update="per-broker",
        effect="later",
        doc="Private key in PEM form.",
    )
    ssl_keystore_location: str | None = string(
        default=None,
        update="per-broker",
        effect="later",
        doc="File with the private key and its certificates.",
    )
    ssl_keystore_password: str | None = password(
        default=None,
        update="per-broker",
        effect="later",
        doc="Password of that file.",
    )
    ssl_keystore_type: str = string(
        default="JKS",
        update="per-broker",
        effect="later",
        doc="Format of that file.",
    )
    ssl_principal_mapping_rules: str = string(
        default="DEFAULT",
        importance="low",
        effect="later",
        doc="Rules that turn a certificate's distinguished name into a user name.",
    )
    ssl_protocol: str = string(
        default="TLSv1.3",
        update="per-broker",
        effect="later",
        doc="Newest TLS version to use.",
    )
    ssl_provider: str | None = string(
        default=None,
        update="per-broker",
        effect="none",
        doc="Java security provider for TLS.",
    )
    ssl_secure_random_implementation: str | None = string(
        default=None,
        importance="low",
        update="per-broker",
        effect="none",
        doc="Java's source of random numbers for TLS.",
    )
    ssl_trustmanager_algorithm: str = string(
        default="PKIX",
        update="per-broker",
        effect="none",
        doc="Algorithm of Java's trust manager.",
    )
    ssl_truststore_certificates: str | None = password(
        default=None,
        update="per-broker",
        effect="later",
        doc="Trusted certificates in PEM form.",
    )
    ssl_truststore_location: str | None = string(
        default=None,
        update="per-broker",
        effect="later",
        doc="File with the trusted certificates.",
    )
    ssl_truststore_password: str | None = password(
        default=None,
        update="per-broker",
        effect="later",
        doc="Password of that file.",
    )
    ssl_truststore_type: str = string(
        default="JKS",
        update="per-broker",
        effect="later",
        doc="Format of that file.",
    )
