"""An outage, a row or a mistake: told by exceptions, and by the text that Spark makes of them."""

from __future__ import annotations

import errno

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.errors.outages import Verdict, judge, outage_of
from ottla.pipelines.driver.failures import sentence
from ottla.pipelines.sink.failures import WriteFailed

IN_A_TASK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
{last}
"""


class OfADatabase(Exception):
    def __init__(self, state: str, text: str = "it failed") -> None:
        super().__init__(text)
        self.sqlstate = state


@pytest.mark.parametrize(
    "error",
    [
        Outage("PostgreSQL", "nobody answers"),
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        TimeoutError("timed out"),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EACCES, "Permission denied"),
        KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved"),
        KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the grant was revoked"),
        KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "two are gone"),
        OfADatabase("08006"),
        OfADatabase("57P01"),
        OfADatabase("53100"),
        OfADatabase("42501"),
        RuntimeError(IN_A_TASK.format(last="ConnectionRefusedError: [Errno 111] nobody")),
        RuntimeError(IN_A_TASK.format(last="OSError: [Errno 28] No space left on device: '/x'")),
        RuntimeError("java.net.ConnectException: Connection refused"),
        RuntimeError("ERROR: terminating connection due to administrator command"),
        RuntimeError("adbc: [libpq] failed. SQLSTATE: 57P03"),
    ],
)
def test_what_passes_is_an_outage(error: Exception) -> None:
    assert judge(error).verdict is Verdict.OUTAGE


@pytest.mark.parametrize(
    "error",
    [
        WriteFailed("row 3 was not written", ErrorCode.MESSAGE_TOO_LARGE, 3),
        OfADatabase("22003"),
        OfADatabase("23505"),
        RuntimeError("[CAST_INVALID_INPUT] The value 'a' cannot be cast. SQLSTATE: 22018"),
        RuntimeError("topic-0 refused it with MESSAGE_TOO_LARGE: too large"),
    ],
)
def test_what_a_value_causes_is_the_rows(error: Exception) -> None:
    assert judge(error).verdict is Verdict.ROW


@pytest.mark.parametrize(
    "error",
    [
        OfADatabase("42P01"),
        KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "orders"),
        RuntimeError("[UNRESOLVED_COLUMN] no column x. SQLSTATE: 42703"),
        RuntimeError("PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has 3.12"),
        RuntimeError('java.io.IOException: Cannot run program "python3.11": error=2, No such file'),
        RuntimeError(IN_A_TASK.format(last="ModuleNotFoundError: No module named 'shop'")),
        RuntimeError("Job 3 cancelled because SparkContext was shut down"),
    ],
)
def test_what_no_time_changes_is_a_mistake(error: Exception) -> None:
    assert judge(error).verdict is Verdict.MISTAKE


def test_nothing_is_known_of_any_other_exception() -> None:
    assert judge(RuntimeError("oops")).verdict is Verdict.UNKNOWN


def test_a_value_that_speaks_of_a_connection_is_no_outage() -> None:
    last = "ValueError: no number: 'Connection refused'"
    assert judge(RuntimeError(IN_A_TASK.format(last=last))).verdict is Verdict.UNKNOWN

    class OfSpark(Exception):
        def getSqlState(self) -> str:  # noqa: N802 - Spark's name for it
            return "22018"

    error = OfSpark("[CAST_INVALID_INPUT] The value 'Connection refused' cannot be cast.")
    assert judge(error).verdict is Verdict.ROW


PLANNED = """[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions: \
Traceback (most recent call last):
  File "batch_plan.py", line 46, in _ranges
    except Unreachable as error:
  File "lookup.py", line 76, in real_partitions
    raise OptionError(
          ^^^^^^^^^^^^
ottla.pipelines.errors.OptionError: subscribe names topic x, and there is no such topic: create it.
 SQLSTATE: 38000"""


def test_what_is_written_in_the_code_of_a_trace_is_not_what_has_happened() -> None:
    """It has waited without an end for a topic that nobody was asked to make."""
    found = judge(RuntimeError(PLANNED))
    assert found.verdict is Verdict.UNKNOWN
    assert found.sentence == "subscribe names topic x, and there is no such topic: create it."
    away = PLANNED.replace("OptionError: ", "Unreachable: ")
    assert judge(RuntimeError(away)).verdict is Verdict.OUTAGE


OTHER_HEADER = """An error occurred while calling o42.save.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file \
file:///in/b.csv. SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(x.scala:1)
Caused by: org.apache.spark.SparkIllegalArgumentException: {said}
CSV file: file:///in/b.csv
\tat org.apache.spark.sql.catalyst.csv.CSVHeaderChecker.checkHeaderColumnNames(x.scala:2)
"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "CSV header does not conform to the schema.\n Header: id, naem\n Schema: id, name\n"
            "Expected: name but found: naem",
            "Header: id, naem, Schema: id, name, Expected: name but found: naem",
        ),
        (
            "Number of column in CSV header is not equal to number of fields in the schema:\n"
            " Header length: 3, schema size: 2",
            "Header length: 3, schema size: 2",
        ),
    ],
)
def test_a_csv_file_with_another_header_is_a_mistake_that_names_it(said: str, told: str) -> None:
    found = judge(RuntimeError(OTHER_HEADER.format(said=said)))
    assert found.verdict is Verdict.MISTAKE  # no row is looked for, and nothing is tried again
    assert found.sentence == (
        f"the header of file:///in/b.csv does not have the columns of the schema ({told}): "
        "correct the file where it is, and run the pipeline again"
    )
    assert sentence(RuntimeError(OTHER_HEADER.format(said=said))) == found.sentence


HEADER = "CSV header does not conform to the schema.\n Header: id, naem\n Schema: id, name\n"
LOGGED = f"{HEADER}CSV file: file:///in/b.csv"
IN_PYTHON = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "orders.py", line 7, in parsed
    raise ValueError(f"no order: {{line}}")
ValueError: no order: {line}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(x.scala:1)
"""


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"no order: {LOGGED}"),
        RuntimeError(IN_PYTHON.format(line=LOGGED)),
        RuntimeError(IN_PYTHON.format(line=f"java.lang.IllegalArgumentException: {LOGGED}")),
        OfADatabase(
            "22018", f"The value 'java.lang.IllegalArgumentException: {LOGGED}' is no number"
        ),
    ],
)
def test_a_row_that_tells_of_a_csv_header_is_no_csv_file(error: Exception) -> None:
    """It would stop the pipeline at a row that can go to the dead letters."""
    assert judge(error).verdict in (Verdict.ROW, Verdict.UNKNOWN)


def test_a_csv_header_is_found_in_the_trace_of_a_batch_in_python() -> None:
    raised = OTHER_HEADER.format(said=HEADER.rstrip())
    text = (
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call "
        f'last):\n  File "x.py", line 1, in call\n    self.func(df)\n'
        f"py4j.protocol.Py4JJavaError: {raised}"
    )
    assert judge(RuntimeError(text)).verdict is Verdict.MISTAKE


IN_A_FILE = """An error occurred while calling o42.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 \
times, most recent failure: Lost task 0.3 in stage 1.0 (TID 4) (localhost executor driver): \
org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/x. \
SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(x.scala:1)
Caused by: {cause}
\tat org.apache.spark.sql.Row.x(x.scala:1)
\t... 15 more

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2)
"""


@pytest.mark.parametrize(
    ("cause", "verdict"),
    [
        (
            "org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value "
            "'Connection refused' of the type \"STRING\" cannot be cast. SQLSTATE: 22018\n"
            "== SQL ==\nselect cast(line as int)",
            Verdict.ROW,
        ),
        ("java.io.IOException: No space left on device", Verdict.OUTAGE),
        ("java.lang.IllegalStateException: this value has no place in a file", Verdict.UNKNOWN),
    ],
)
def test_a_file_is_not_written_for_the_reason_of_its_first_cause(
    cause: str, verdict: Verdict
) -> None:
    assert judge(RuntimeError(IN_A_FILE.format(cause=cause))).verdict is verdict


def test_an_outage_is_read_out_of_a_java_exception() -> None:
    full = RuntimeError(IN_A_FILE.format(cause="java.io.IOException: No space left on device"))
    found = outage_of(full, "the folder /data")
    assert str(found) == "the folder /data cannot be written: No space left on device"
    assert outage_of(RuntimeError("NumberFormatException: abc"), "the folder /data") is None
    away = Outage("the folder", "nobody answers")
    assert outage_of(away, "the folder /data") is away


def test_the_first_cause_of_a_chain_counts() -> None:
    def fail() -> None:
        try:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        except OSError as error:
            raise RuntimeError("SQLSTATE: 22003") from error

    with pytest.raises(RuntimeError) as raised:
        fail()
    assert judge(raised.value).verdict is Verdict.OUTAGE


def test_an_outage_that_was_raised_in_a_task_keeps_its_sentence() -> None:
    last = "ottla.pipelines.connectors.contract.Outage: PostgreSQL at a:1 is away"
    found = judge(RuntimeError(IN_A_TASK.format(last=last)))
    assert (found.verdict, found.sentence) == (Verdict.OUTAGE, "PostgreSQL at a:1 is away")


@pytest.mark.parametrize(
    "quoted",
    ["TimeoutError: b", "ModuleNotFoundError: b", "stopped SparkContext", "RuntimeError: b"],
)
def test_a_value_that_an_exception_quotes_is_not_what_was_raised(quoted: str) -> None:
    """Whoever writes such a record would hold up the pipeline, or stop it."""
    text = IN_A_TASK.format(last=f"ValueError: this is no number: a\n{quoted}")
    assert judge(RuntimeError(text)).verdict is Verdict.UNKNOWN


def test_the_sentence_is_the_last_line_of_a_trace() -> None:
    found = judge(RuntimeError(IN_A_TASK.format(last="mod.OddError: this row is odd")))
    assert (found.kind, found.sentence) == ("OddError", "this row is odd")


def test_the_sentence_of_spark_has_no_state_and_no_stack() -> None:
    text = "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== SQL ==\nselect 1/0\n\tat x.y"
    found = judge(RuntimeError(text))
    assert (found.kind, found.sentence) == ("DIVIDE_BY_ZERO", "Division by zero.")
