"""DescribeBrokers (10001): what the cluster remembers of its brokers.

Versions   0. Ours, for `ottla cluster status`; Kafka's DescribeCluster knows addresses only.
Behaviour  Every broker that ever registered, with its machine and since when it is what it is:
           `up`, `fenced` (there, but not admitted), `stopping` (handing over its leaderships) or
           `missing`. Any broker answers that from its copy of the metadata. The logs that cannot be
           served are those of the broker that answers: who wants all of them asks every broker.
           The same is true of how long it has been without the metadata store, and of its version.
Odd        Not advertised by ApiVersions, so that no client of Kafka's is surprised. Another broker
           than Ottla closes the connection.
See        `model/broker.py`
"""

from __future__ import annotations

from ottla import __version__
from ottla.dispatch.context import Request, Services
from ottla.dispatch.table import handles
from ottla.errors import KafkaError
from ottla.model.broker import BrokerState
from ottla.model.image import ClusterImage
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.brokers import (
    DescribeBrokersRequest,
    DescribeBrokersResponse,
    OfflineLog,
    RememberedBroker,
)


def _failed(request: Request[DescribeBrokersRequest], error: KafkaError) -> DescribeBrokersResponse:
    return DescribeBrokersResponse(
        error_code=error.code, error_message=error.message, brokers=[], offline_logs=[]
    )


@handles(ApiKey.DESCRIBE_BROKERS, versions=range(1), failure=_failed)
def describe_brokers(
    request: Request[DescribeBrokersRequest], services: Services
) -> DescribeBrokersResponse:
    image = services.image
    away = services.contact.away_since_ms
    return DescribeBrokersResponse(
        node_id=services.node_id,
        brokers=[
            RememberedBroker(
                broker_id=number,
                host=state.host,
                state=_standing(image, number, state),
                since_ms=state.since_ms or -1,
            )
            for number, state in sorted(image.broker_states.items())
        ],
        offline_logs=[
            OfflineLog(topic=tp.topic, partition_index=tp.partition, reason=reason)
            for tp, reason in services.logs.offline_partitions.items()
        ],
        store_away_since_ms=-1 if away is None else away,
        version=__version__,
    )


def _standing(image: ClusterImage, number: int, state: BrokerState) -> str:
    if number in image.brokers:
        return "stopping" if state.stopping else "up"
    return "fenced" if number in image.registrations else "missing"
