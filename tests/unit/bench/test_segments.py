"""Reading what Apache's DumpLogSegments prints."""

from __future__ import annotations

from bench.segments import judge_indexes, judge_logs

BATCH = (
    "baseOffset: {first} lastOffset: {last} count: {count} baseSequence: -1 lastSequence: -1 "
    "producerId: -1 producerEpoch: -1 partitionLeaderEpoch: 0 isTransactional: false "
    "isControl: false deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: 1700000006787 "
    "size: 148 magic: 2 compresscodec: none crc: 2051335051 isvalid: {valid}"
)
RECORD = "| offset: {} CreateTime: 1 keySize: -1 valueSize: 3 sequence: -1 headerKeys: []"


def dumped(*, valid: str = "true", count: int = 2) -> str:
    lines = ["Dumping 00000000000000000000.log", "Log starting offset: 0"]
    lines.append(BATCH.format(first=0, last=1, count=count, valid=valid))
    lines += [RECORD.format(0), RECORD.format(1)]
    return "\n".join(lines)


def test_sound_log_gives_its_counts_and_no_complaint() -> None:
    verdict = judge_logs(dumped(), "")
    assert (verdict.files, verdict.batches, verdict.records) == (1, 1, 2)
    assert verdict.complaints == ()


def test_batch_with_a_wrong_checksum_is_a_complaint() -> None:
    (complaint,) = judge_logs(dumped(valid="false"), "").complaints
    assert "invalid batch" in complaint


def test_batch_that_claims_more_records_than_it_has_is_a_complaint() -> None:
    (complaint,) = judge_logs(dumped(count=3), "").complaints
    assert complaint == "batches claim 3 records, 2 were found"


def test_bytes_after_the_last_batch_are_a_complaint() -> None:
    output = dumped() + "\nFound 3 invalid bytes at the end of 00000000000000000000.log"
    assert len(judge_logs(output, "").complaints) == 1


def test_whatever_the_tool_says_on_stderr_is_a_complaint() -> None:
    errors = "Non-consecutive offsets in x.log\n  4 is followed by 9\n"
    assert len(judge_logs(dumped(), errors).complaints) == 2
    assert len(judge_indexes("Dumping x.index", "Mismatches in :x.index\n").complaints) == 1


def test_greeting_of_the_logging_library_and_stack_frames_are_no_complaints() -> None:
    errors = 'SLF4J: no binder\nException in thread "main" Corrupt\n\tat kafka.tools.X(X.scala:1)\n'
    assert judge_indexes("Dumping x.index", errors).complaints == (
        'Exception in thread "main" Corrupt',
    )


def test_sound_indexes_give_their_count_and_no_complaint() -> None:
    output = "Dumping a.index\na.index passed sanity check.\nDumping b.timeindex\nb is empty."
    verdict = judge_indexes(output, "")
    assert verdict.files == 2
    assert verdict.complaints == ()
