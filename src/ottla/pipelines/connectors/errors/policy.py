"""When to try again, and when there are too many dead letters.

Waits grow from the first to the longest, each twice the one before. A failure that may be an outage
has no last attempt: giving up would only mean that somebody else has to start the pipeline again.

A run may have 100 letters, or letters for one row in a hundred if that is more; so a batch of ten
rows may have a bad one, and a wrong schema stops the pipeline before the dead-letter topic holds
all of the source.
"""

from __future__ import annotations

from ottla.pipelines.connectors.spec.values import ErrorPolicy


def wait_before(policy: ErrorPolicy, attempt: int) -> float:
    """Seconds before an attempt; the first is 1 and waits for nothing."""
    first, longest = policy.backoff
    if attempt <= 1:
        return 0.0
    return min(first * 2.0 ** min(attempt - 2, 60), longest)


def allowed(policy: ErrorPolicy, rows: int) -> int:
    """How many letters a run that has read so many rows may have."""
    return max(policy.most_letters, int(rows * policy.most_share))
