"""What a failure means: an outage, which passes; a row, which never will; or a mistake.

    verdict, kind, sentence = judge(error)

A failure comes from far away: from a driver of a database in a task, through the task's Python, the
JVM and py4j. On the way it becomes text inside an exception of Spark's. So the exceptions of the
chain are asked first (`Outage`, errno, Kafka's code, SQLSTATE), and then their text, from the end,
where the first cause is.

outage    nobody's row: refused, timed out, not allowed (a grant was revoked), full. A row that an
          outage were blamed for would be lost, so what might be one is one
row       what a value can cause: too large, out of range, not unique, not a number
mistake   no row and no time will change it: a table or a column that is not there, a csv file with
          another header, executors without the Python or the modules that their tasks need, a Spark
          that has been ended
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from ottla.client.retry import passes
from ottla.errors import ErrorCode, KafkaError
from ottla.pipelines.connectors.contract import Outage


class Verdict(Enum):
    OUTAGE = "outage"
    ROW = "row"
    MISTAKE = "mistake"
    UNKNOWN = "unknown"


class Judgement(NamedTuple):
    """`kind` is the class of the failure, for people and for the header of a dead letter."""

    verdict: Verdict
    kind: str
    sentence: str


_ERRNO: Final = frozenset(
    {
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EPIPE,
        errno.ETIMEDOUT,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.ENETDOWN,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EMFILE,
        errno.ENFILE,
        errno.EIO,
    }
)
_NOT_ALLOWED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
_OF_A_RECORD: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
    }
)
_STATE: Final = re.compile(r"\bSQLSTATE:?\s*\[?([0-9A-Z]{5})\b")
_STATES: Final = (
    (re.compile(r"08|53|57P|57014|58|28|42501|25006|40|55P03|55006"), Verdict.OUTAGE),
    (re.compile(r"22|23|21|44"), Verdict.ROW),
    (re.compile(r"42|3F|3D|0A|26|34"), Verdict.MISTAKE),
)
"""Classes of SQLSTATE: connection, resources, operator, system, password, grant, read only,
serialization, locks; data, constraints, cardinality; syntax and names."""

_AWAY: Final = re.compile(
    r"(?:^|[\s.:])(?:ConnectionRefusedError|ConnectionResetError|ConnectionAbortedError"
    r"|BrokenPipeError|TimeoutError|socket\.gaierror|gaierror|BlockingIOError|PermissionError"
    r"|ConnectException|NoRouteToHostException|UnknownHostException|SocketTimeoutException"
    r"|SocketException|ClosedChannelException|EOFException|AccessControlException"
    r"|AccessDeniedException|DSQuotaExceededException|Unreachable)\b"
    r"|No space left on device|Disk quota exceeded|File too large|Read-only file system"
    r"|Permission denied"
    r"|Connection refused|Connection reset|Connection timed out|Input/output error"
    r"|ParentNotDirectoryException|Mkdirs failed to create"
    r"|Too many open files|Name or service not known|Temporary failure in name resolution"
    r"|database is locked|database or disk is full"
    r"|could not connect to server|server closed the connection unexpectedly"
    r"|terminating connection due to|the database system is (?:starting up|shutting down)"
    r"|too many clients already|no connection to the server"
)
_NEVER: Final = re.compile(
    r"\[PYTHON_VERSION_MISMATCH\]|Cannot run program \"[^\"\n]*python|ModuleNotFoundError: "
    r"|SparkContext was shut down|SparkContext has been shutdown|stopped SparkContext"
)
_CAUSE: Final = re.compile(r"^Caused by: ", re.M)
_STACK: Final = re.compile(r"^\s+at ", re.M)
_PYTHON_STACK: Final = re.compile(r'^ +File "[^\n]*(?:\n {4}[^\n]*)*\n', re.M)
"""The lines of a Python trace: the code in them may name any exception."""
_RAISED: Final = re.compile(rf"(?:{_PYTHON_STACK.pattern})(?:[\w.]+\.)?(\w+)(?=[:\n])", re.M)
"""What was raised there; the lines after it are the exception's own, which may quote a value."""
_ONLY_SAYS_WHERE: Final = "[TASK_WRITE_FAILED]"
"""Spark's error around everything that happens while a file is written; its state is 58030."""
_OURS: Final = re.compile(r"ottla\.pipelines\.connectors\.contract\.Outage: ([^\n]*)")
_CODES: Final = re.compile(r"\b(" + "|".join(code.name for code in ErrorCode) + r")\b")
_LINE: Final = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Refused|Failed)): (.*)$", re.M)
_SPARK_ERROR: Final = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ([^\n]*)")
_PYTHON_TRACE: Final = "Traceback (most recent call last)"
_OF_JAVA: Final = re.compile(r"^(?:py4j\.protocol\.Py4J|pyspark\.errors\.)", re.M)
_CSV_HEADER: Final = re.compile(
    r"(?:\A|IllegalArgumentException: )"
    r"(?:CSV header does not conform to the schema|Number of column in CSV header is not equal)"
    r"[^\n]*\n((?:(?!CSV file: )[^\n]*\n){1,4})CSV file: ([^\n]+)"
)
"""What Spark says of a header over several lines, the file in the last; a value of a row may hold
the same words, as where the rows are lines of a log."""
_OF_VALUES: Final = frozenset(
    {"ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "ZeroDivisionError",
     "AssertionError", "OverflowError", "UnicodeDecodeError", "UnicodeEncodeError"}
)  # fmt: skip
_LONGEST: Final = 500


def judge(error: BaseException) -> Judgement:
    """What an exception, with all that it was raised from, means."""
    chain = list(_chain(error))
    if not any(_typed(each) is Verdict.ROW for each in chain):
        for each in chain:
            header = other_header(str(each))
            if header is not None:
                return Judgement(Verdict.MISTAKE, "OtherHeader", header)
    kind, sentence = _words(chain)
    for each in chain:
        found = _typed(each)
        if found is not None:
            said = str(each) if isinstance(each, Outage) else sentence
            return Judgement(found, kind, said)
    if any(_NEVER.search(str(each)) and not _is_about_a_value(str(each)) for each in chain):
        return Judgement(Verdict.MISTAKE, kind, sentence)
    for each in chain:
        text = str(each)
        ours = _OURS.search(text)
        if ours is not None:
            return Judgement(Verdict.OUTAGE, "Outage", ours[1])
        found = _in_text(text)
        if found is not None:
            return Judgement(found, kind, sentence)
    return Judgement(Verdict.UNKNOWN, kind, sentence)


def outage_of(error: BaseException, what: str) -> Outage | None:
    """The outage that an exception tells of, if it does, in the words of its cause.

    what   what cannot be written
    """
    found = judge(error)
    if found.verdict is not Verdict.OUTAGE:
        return None
    if isinstance(error, Outage):
        return error
    away = (_AWAY.search(words) for words in _causes(str(error)))
    said = next((match[0] for match in away if match is not None), found.sentence)
    return Outage(what, f"{what} cannot be written: {said.lstrip(' .:').strip()}")


def other_header(text: str) -> str | None:
    """The sentence about a csv file whose header is not that of the schema, if a text has it."""
    found = _CSV_HEADER.search(text)
    if found is None or _raised_by_python(text[: found.start()]):
        return None
    what = ", ".join(line.strip() for line in found[1].splitlines() if line.strip())
    return (
        f"the header of {found[2].strip()} does not have the columns of the schema ({what}): "
        "correct the file where it is, and run the pipeline again"
    )


def _raised_by_python(before: str) -> bool:
    """Whether what comes after a text is the message of an exception of Python's own."""
    trace = before.rfind(_PYTHON_TRACE)
    return trace >= 0 and _OF_JAVA.search(before, trace) is None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception that was raised first comes first."""
    found: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in found:
        found.append(each)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return reversed(found)


def _typed(error: BaseException) -> Verdict | None:
    """By what the exception is and carries."""
    if isinstance(error, (Outage, ConnectionError, TimeoutError)):
        return Verdict.OUTAGE
    if isinstance(error, OSError) and error.errno in _ERRNO:
        return Verdict.OUTAGE
    if isinstance(error, KafkaError):
        return _of_code(error.code)
    code = getattr(error, "code", None)
    if isinstance(code, ErrorCode):
        return _of_code(code)
    state = getattr(error, "sqlstate", None)
    if state is None and hasattr(error, "getSqlState"):  # one of Spark's
        state = error.getSqlState()
    if isinstance(state, str) and state:
        return _of_state(state)
    return None


def _in_text(text: str) -> Verdict | None:
    """The first cause that says something is the last in the text.

    A state comes before words: the words of an error with one may be those of a value.
    """
    for part in reversed(_CAUSE.split(text)):
        words = _without_stacks(part)
        lines = _LINE.findall(words)
        if _is_about_a_value(part) or (lines and lines[-1][0] in _OF_VALUES):
            return None  # whatever its words are, they are about a value
        states = [] if _ONLY_SAYS_WHERE in words else _STATE.findall(words)
        for state in reversed(states):
            found = _of_state(state)
            if found is not None:
                return found
        if _AWAY.search(words):
            return Verdict.OUTAGE
        for name in reversed(_CODES.findall(words)):
            code = _of_code(ErrorCode[name])
            if code is not None:
                return code
    return None


def _causes(text: str) -> Iterator[str]:
    """What each exception of a Java trace says, without its stack; the first cause first."""
    for part in reversed(_CAUSE.split(text)):
        yield _without_stacks(part)


def _without_stacks(text: str) -> str:
    return _STACK.split(_PYTHON_STACK.sub("", text), maxsplit=1)[0]


def _is_about_a_value(text: str) -> bool:
    """Whether Python raised what a value causes: all the words may be those of the value."""
    raised = _RAISED.findall(text)
    return bool(raised) and raised[-1] in _OF_VALUES


def _of_code(code: ErrorCode) -> Verdict | None:
    if code in _OF_A_RECORD:
        return Verdict.ROW
    if code in _NOT_ALLOWED or passes(code):
        return Verdict.OUTAGE
    if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
        return Verdict.MISTAKE
    return None


def _of_state(state: str) -> Verdict | None:
    for pattern, verdict in _STATES:
        if pattern.match(state):
            return verdict
    return None


def _wraps_python(sentence: str, lines: list[tuple[str, str]]) -> bool:
    """Whether Spark only says that Python has raised something, which is behind the trace."""
    return _PYTHON_TRACE in sentence and bool(lines)


def _words(chain: list[BaseException]) -> tuple[str, str]:
    """The class of the failure and its sentence, without the stack that surrounds them."""
    text = str(chain[0]).strip()
    lines = _LINE.findall(text)
    spark = _SPARK_ERROR.search(text)
    if spark is not None and spark[1] != "PYTHON_EXCEPTION" and not _wraps_python(spark[2], lines):
        kind, sentence = spark[1], spark[2].partition("SQLSTATE:")[0]
    elif lines:
        kind, sentence = lines[-1]
    else:
        kind, sentence = type(chain[0]).__name__, text.partition("\n")[0]
    sentence = sentence.strip() or kind
    return kind, sentence if len(sentence) <= _LONGEST else sentence[: _LONGEST - 1] + "…"
