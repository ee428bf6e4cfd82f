"""ApiVersions (18): which APIs this broker serves, at which versions.

Versions   0-4. A version outside the range is answered in the form of version 0 with
           UNSUPPORTED_VERSION and the real range, so that any client can fall back.
Behaviour  Answered from the table of handlers, so nothing is advertised that is not served. APIs
           of our own (keys from 10000 on) are served and not advertised, and so is client
           telemetry where no metrics are shown (`metrics.listen`) or nobody has subscribed.
           From version 3 on with the features: the levels that this broker supports, and those
           that the cluster has finalized.
Odd        The response header is always the old one, whatever the version: a client that has not
           yet learned what we speak must be able to read it.
           A client software name or version with other characters than letters, digits, `-` and
           `.` fails with INVALID_REQUEST, from version 3 on.
           Features that can be switched off (minimum level 0) are named as supported from
           version 4 on: older Java clients fail on them.
See        KIP-35, KIP-511, KIP-584
"""

from __future__ import annotations

import re

from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.features import SUPPORTED
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

VERSIONS = range(5)
NAMES_CLIENT = 3
KNOWS_LEVEL_0 = 4
TELEMETRY = (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def _failed(request: Request[ApiVersionsRequest], error: KafkaError) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=error.code, api_keys=[])


@handles(ApiKey.API_VERSIONS, versions=VERSIONS, failure=_failed)
def api_versions(request: Request[ApiVersionsRequest], services: Services) -> ApiVersionsResponse:
    if request.api_version not in VERSIONS:
        served = ApiVersion(
            api_key=ApiKey.API_VERSIONS, min_version=VERSIONS[0], max_version=VERSIONS[-1]
        )
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[served])
    body = request.body
    if request.api_version >= NAMES_CLIENT and not (
        _SOFTWARE.fullmatch(body.client_software_name)
        and _SOFTWARE.fullmatch(body.client_software_version)
    ):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.api_version >= NAMES_CLIENT:
        request.connection.software = body.client_software_name, body.client_software_version
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(
                api_key=handler.key,
                min_version=handler.versions[0],
                max_version=handler.versions[-1],
            )
            for handler in services.table
            if not handler.key.is_own
            and (handler.key not in TELEMETRY or services.telemetry.offered)
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=levels[0], max_version=levels[-1])
            for name, levels in SUPPORTED.items()
            if levels[0] > 0 or request.api_version >= KNOWS_LEVEL_0
        ],
        finalized_features_epoch=services.image.revision,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in services.registry.features.items()
        ],
    )
