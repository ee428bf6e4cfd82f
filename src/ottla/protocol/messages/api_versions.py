"""ApiVersions (18): what a broker speaks. The first request of nearly every connection."""

from __future__ import annotations

from ottla.protocol.schema import array, boolean, int16, int32, int64, message, string, struct


@message(api_key=18, kind="request", versions="0-4", flexible="3+")
class ApiVersionsRequest:
    """Asks what the broker speaks; from 3 on (flexible) it also says who asks."""

    client_software_name: str = string(versions="3+", ignorable=True, default="")
    client_software_version: str = string(versions="3+", ignorable=True, default="")


@struct
class ApiVersion:
    """One API and its range of versions."""

    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


@struct
class SupportedFeatureKey:
    """A feature this broker could use; up to 3 a minimum of 0 must not be sent."""

    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


@struct
class FinalizedFeatureKey:
    """A feature level the whole cluster uses."""

    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


@message(api_key=18, kind="response", versions="0-4", flexible="3+")
class ApiVersionsResponse:
    """What the broker speaks.

    1 throttle time, 3 flexible and features. A request of an unknown version is answered in version
    0 with UNSUPPORTED_VERSION and the range of this one API.
    """

    error_code: int = int16(default=0)
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(versions="1+", ignorable=True, default=0)
    supported_features: list[SupportedFeatureKey] = array(
        SupportedFeatureKey, versions="3+", tag=0, ignorable=True, factory=list
    )
    finalized_features_epoch: int = int64(versions="3+", tag=1, ignorable=True, default=-1)
    finalized_features: list[FinalizedFeatureKey] = array(
        FinalizedFeatureKey, versions="3+", tag=2, ignorable=True, factory=list
    )
    zk_migration_ready: bool = boolean(versions="3+", tag=3, ignorable=True, default=False)
