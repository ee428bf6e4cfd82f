"""`python -m bench.load NAME JSON`: run one measurement and print its result as JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from bench.load import consumers, groups, latency, requests, start, throughput

if TYPE_CHECKING:
    from collections.abc import Callable

MEASUREMENTS: dict[str, Callable[..., dict[str, float]]] = {
    "produce": throughput.produce,
    "consume": throughput.consume,
    "requests": requests.clients,
    "requests-raw": requests.raw,
    "paced": latency.paced,
    "first-ack": start.first_ack,
    "first-record": consumers.first_record,
    "rebalance": consumers.rebalance,
    "rebalances-raw": groups.rebalances,
    "heartbeats": groups.heartbeats,
    "commits": groups.commits,
}


def main() -> None:
    name, arguments = sys.argv[1:]
    print(json.dumps(MEASUREMENTS[name](**json.loads(arguments))), flush=True)


if __name__ == "__main__":
    main()
