"""`python -m bench.load NAME JSON`: run one measurement and print its result as JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from bench.load import (
    consumers,
    groups,
    latency,
    offsets,
    pauses,
    requests,
    start,
    throughput,
    transactions,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _fill_keyed(bootstrap: str, **arguments: int | str) -> dict[str, float]:
    # Here, so that the other clients do not load numpy.
    from bench.load import keyed

    return keyed.fill(bootstrap, **arguments)


MEASUREMENTS: dict[str, Callable[..., dict[str, float]]] = {
    "produce": throughput.produce,
    "consume": throughput.consume,
    "each-partition": throughput.each_partition,
    "flood": throughput.flood,
    "fill-keyed": _fill_keyed,
    "requests": requests.clients,
    "requests-raw": requests.raw,
    "paced": latency.paced,
    "pause": pauses.pause,
    "first-ack": start.first_ack,
    "told-ack": start.told_ack,
    "replicated-ack": start.replicated_ack,
    "first-record": consumers.first_record,
    "rebalance": consumers.rebalance,
    "rebalances-raw": groups.rebalances,
    "heartbeats": groups.heartbeats,
    "commits": groups.commits,
    "commit-all": offsets.commit_all,
    "offsets-served": offsets.served,
    "transactions": transactions.rate,
    "transactional-produce": transactions.produce,
    "committed-latency": transactions.latency,
    "transform": transactions.transform,
}


def main() -> None:
    name, arguments = sys.argv[1:]
    print(json.dumps(MEASUREMENTS[name](**json.loads(arguments))), flush=True)


if __name__ == "__main__":
    main()
