"""UpdateFeatures (57): the levels of features that a cluster has agreed on.

Versions   0-2. From 2 on there is one outcome for all.
Behaviour  All updates are carried out, or none. Only `transaction.version` and our own
           `ottla.metadata.version` can change; asking for the present level of another one is no
           error. Every broker that is there has to support the level: old ones leave first. A
           feature that an older version of Ottla did not know is off until it is finalized so.
           While partitions are reassigned `ottla.metadata.version` cannot go back to 0. A lower
           level needs AllowDowngrade, or from
           version 1 on a kind of change that says so. With validate_only nothing is changed.
           Whoever is asked hands it on to the controller.
           Transactions that are open go on under the version that their producers speak.
Odd        Safe and unsafe downgrades are the same: nothing is lost by either.
See        KIP-584, KIP-778, KIP-890
"""

from __future__ import annotations

from functools import partial

from ottla.controller.reassignment import ongoing
from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode, KafkaError
from ottla.model.features import objection
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

KNOWS_KINDS = 1
ONE_OUTCOME = 2
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def _failed(request: Request[UpdateFeaturesRequest], error: KafkaError) -> UpdateFeaturesResponse:
    results = []
    if request.api_version < ONE_OUTCOME:
        results = [
            UpdatableFeatureResult(
                feature=each.feature, error_code=error.code, error_message=error.message
            )
            for each in request.body.feature_updates
        ]
    return UpdateFeaturesResponse(
        error_code=error.code, error_message=error.message, results=results
    )


@handles(ApiKey.UPDATE_FEATURES, versions=range(3), failure=_failed, for_controller=True)
async def update_features(
    request: Request[UpdateFeaturesRequest], services: Services
) -> UpdateFeaturesResponse:
    if request.body.validate_only:
        _allowed(request, services)
    else:
        await services.controller.change_features(partial(_allowed, request, services))
    results = []
    if request.api_version < ONE_OUTCOME:
        names = dict.fromkeys(each.feature for each in request.body.feature_updates)
        results = [UpdatableFeatureResult(feature=name) for name in names]
    return UpdateFeaturesResponse(results=results)


def _allowed(request: Request[UpdateFeaturesRequest], services: Services) -> dict[str, int]:
    """The levels that are asked for. Raises KafkaError where the cluster cannot have them now."""
    levels: dict[str, int] = {}
    for each in request.body.feature_updates:
        downgrade = _is_downgrade(each, request.api_version)
        reason = objection(
            services.registry.features,
            each.feature,
            each.max_version_level,
            downgrade=downgrade,
            brokers={each.id: each.features for each in services.image.registrations.values()},
            reassigning=bool(ongoing(services.image, None)),
        )
        if reason is not None:
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, reason)
        levels[each.feature] = each.max_version_level
    return levels


def _is_downgrade(each: FeatureUpdateKey, version: int) -> bool:
    if version < KNOWS_KINDS:
        return each.allow_downgrade
    if each.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown kind of update: {each.upgrade_type}")
    return each.upgrade_type != UPGRADE
