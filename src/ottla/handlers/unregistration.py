"""UnregisterBroker (64): a broker that is gone for good is forgotten.

Versions   0.
Behaviour  The cluster does not know the broker any more, until it registers again. Whoever is asked
           hands it on to the controller. BROKER_ID_NOT_REGISTERED for one that is not known.
Odd        Kafka unregisters any broker, and partitions go on naming it. Here INVALID_REQUEST is
           answered for one that runs, and for one that partitions name: what it may have lost could
           not be told when it comes back. `ottla cluster drain` moves them away.
See        KIP-631
"""

from __future__ import annotations

from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.errors import KafkaError
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.unregistration import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)


def _failed(
    request: Request[UnregisterBrokerRequest], error: KafkaError
) -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)


@handles(ApiKey.UNREGISTER_BROKER, versions=range(1), failure=_failed, for_controller=True)
async def unregister_broker(
    request: Request[UnregisterBrokerRequest], services: Services
) -> UnregisterBrokerResponse:
    await services.controller.unregister(request.body.broker_id)
    return UnregisterBrokerResponse()
