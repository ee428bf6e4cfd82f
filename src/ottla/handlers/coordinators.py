"""FindCoordinator (10): which broker coordinates a group or a transactional id.

Versions   0-6; from 4 on several keys in one request.
Not done   There are no coordinators yet. For a group the answer is COORDINATOR_NOT_AVAILABLE, as
           from a Kafka that cannot make its offsets topic: a consumer that assigns partitions
           itself goes on undisturbed. For a transactional id it is
           TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which clients take as final; with a retriable
           code a transactional producer would wait for ever without a word.
See        KIP-98, KIP-699, KIP-932
"""

from __future__ import annotations

from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.errors import ErrorCode
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

MANY_KEYS = 4

_REFUSALS = {
    0: (ErrorCode.COORDINATOR_NOT_AVAILABLE, "consumer groups are not supported yet"),
    1: (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported yet"),
}


@handles(ApiKey.FIND_COORDINATOR, versions=range(7))
def find_coordinator(
    request: Request[FindCoordinatorRequest], services: Services
) -> FindCoordinatorResponse:
    body = request.body
    unknown = (ErrorCode.INVALID_REQUEST, f"unknown coordinator type {body.key_type}")
    code, message = _REFUSALS.get(body.key_type, unknown)
    if request.api_version < MANY_KEYS:
        return FindCoordinatorResponse(
            error_code=code, error_message=message, node_id=-1, host="", port=-1
        )
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(
                key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message
            )
            for key in body.coordinator_keys
        ]
    )
