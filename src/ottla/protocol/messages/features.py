"""Feature levels: UpdateFeatures (57)."""

from __future__ import annotations

from ottla.protocol.schema import array, boolean, int8, int16, int32, message, string, struct


@struct
class FeatureUpdateKey:
    """The level that a feature is to have; 1 says by which kind of change."""

    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean(versions="0", default=False)
    upgrade_type: int = int8(versions="1+", default=1)


@message(api_key=57, kind="request", versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    """Changes the finalized levels of features (KIP-584). 1 only trying."""

    timeout_ms: int = int32(default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean(versions="1+", default=False)


@struct
class UpdatableFeatureResult:
    """What became of one feature."""

    feature: str = string()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)


@message(api_key=57, kind="response", versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    """All of it was done, or nothing. 2 without the outcome of each."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    results: list[UpdatableFeatureResult] = array(
        UpdatableFeatureResult, versions="0-1", ignorable=True, factory=list
    )
