"""SASL/OAUTHBEARER: tokens, their issuers and their keys."""

from __future__ import annotations

from ottla.config.declare import (
    Settings,
    boolean,
    class_name,
    integer,
    long,
    names,
    password,
    string,
)
from ottla.config.rules import between, distinct, one_of_any_case


class OauthSettings(Settings):
    """SASL/OAUTHBEARER."""

    sasl_oauthbearer_assertion_algorithm: str = string(
        default="RS256",
        rule=one_of_any_case("ES256", "RS256"),
        effect="later",
        doc="Algorithm that signs the assertion sent for a token.",
    )
    sasl_oauthbearer_assertion_claim_aud: str | None = string(
        default=None,
        effect="later",
        doc="Audience claim of the assertion.",
    )
    sasl_oauthbearer_assertion_claim_exp_seconds: int = integer(
        default=300,
        rule=between(0, 86_400),
        importance="low",
        effect="later",
        doc="Life of the assertion, in seconds.",
    )
    sasl_oauthbearer_assertion_claim_iss: str | None = string(
        default=None,
        effect="later",
        doc="Issuer claim of the assertion.",
    )
    sasl_oauthbearer_assertion_claim_jti_include: bool = boolean(
        default=False,
        effect="later",
        doc="Put a unique id into every assertion.",
    )
    sasl_oauthbearer_assertion_claim_nbf_seconds: int = integer(
        default=60,
        rule=between(0, 3600),
        importance="low",
        effect="later",
        doc="How many seconds before its creation the assertion is already valid.",
    )
    sasl_oauthbearer_assertion_claim_sub: str | None = string(
        default=None,
        effect="later",
        doc="Subject claim of the assertion.",
    )
    sasl_oauthbearer_assertion_file: str | None = string(
        default=None,
        effect="later",
        doc="File that holds a ready-made assertion.",
    )
    sasl_oauthbearer_assertion_private_key_file: str | None = string(
        default=None,
        effect="later",
        doc="File that holds the key which signs assertions.",
    )
    sasl_oauthbearer_assertion_private_key_passphrase: str | None = password(
        default=None,
        effect="later",
        doc="Passphrase of that key.",
    )
    sasl_oauthbearer_assertion_template_file: str | None = string(
        default=None,
        effect="later",
        doc="File with fixed headers and claims of assertions.",
    )
    sasl_oauthbearer_client_credentials_client_id: str | None = string(
        default=None,
        effect="later",
        doc="Client id for the client-credentials grant.",
    )
    sasl_oauthbearer_client_credentials_client_secret: str | None = password(
        default=None,
        effect="later",
        doc="Client secret for the client-credentials grant.",
    )
    sasl_oauthbearer_clock_skew_seconds: int = integer(
        default=30,
        importance="low",
        effect="later",
        doc="Difference between clocks that is forgiven when a token is judged.",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = names(
        default=(),
        rule=distinct(),
        importance="low",
        effect="later",
        doc="Audiences of which a token must name one.",
    )
    sasl_oauthbearer_expected_issuer: str | None = string(
        default=None,
        importance="low",
        effect="later",
        doc="Issuer a token must come from.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = long(
        default=3_600_000,
        importance="low",
        effect="later",
        doc="How often the issuer's keys are fetched again.",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = long(
        default=10_000,
        importance="low",
        effect="later",
        doc="Longest pause between attempts to fetch the keys.",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = long(
        default=100,
        importance="low",
        effect="later",
        doc="First pause between attempts to fetch the keys.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = string(
        default=None,
        effect="later",
        doc="Where the issuer's keys are fetched: an https or a file URL.",
    )
    sasl_oauthbearer_jwt_retriever_class: str = class_name(
        default="org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        effect="none",
        doc="A Java class that fetches tokens.",
    )
    sasl_oauthbearer_jwt_validator_class: str = class_name(
        default="org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        effect="none",
        doc="A Java class that judges tokens.",
    )
    sasl_oauthbearer_scope: str | None = string(
        default=None,
        effect="later",
        doc="Scope asked for with a token.",
    )
    sasl_oauthbearer_scope_claim_name: str = string(
        default="scope",
        importance="low",
        effect="later",
        doc="Name of the claim that holds a token's scope.",
    )
    sasl_oauthbearer_sub_claim_name: str = string(
        default="sub",
        importance="low",
        effect="later",
        doc="Name of the claim that holds a token's subject.",
    )
    sasl_oauthbearer_token_endpoint_url: str | None = string(
        default=None,
        effect="later",
        doc="Where tokens are asked for: an https or a file URL.",
    )
