"""A torn tail is torn: where it happened to end with a batch, nothing could tell of the loss."""

from __future__ import annotations

from pathlib import Path

from ottla.verify.faults.disks import _inside_a_batch
from ottla.verify.values import write_batch


def test_a_segment_is_never_cut_where_a_batch_ends(tmp_path: Path) -> None:
    batch = write_batch(1, 0, 3, now_ms=0)
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(batch + batch)
    ends = {len(batch), 2 * len(batch)}
    sizes = [_inside_a_batch(segment, size) for size in range(1, 2 * len(batch) + 1)]
    assert not ends & set(sizes)
    assert min(sizes) == 1
