"""Rows from a URL that answers with JSON, page by page, again and again.

A round asks for the first page and follows to the last. The next round begins after `every`, with
what the cursor says: the largest value of a field of all rows so far, sent as a parameter. Rows
that come again because their cursor's value is the last one are left out. Without a cursor each
round has all rows again.

How the next page is found, one of these:

    next: link            the answer's header `Link: <…>; rel="next"`
    next: paging.next     a field of the answer with the next URL, or with a token for `next_param`
    page_param: page      pages are numbered, up to the first that is empty

A row's columns are those of `schema` or `schema_file`; without them there is a single column
`value` with its JSON.

What the server says is not trusted with more than its rows: a next page is asked for over HTTP
only, headers go to nobody but the server of `url`, and parameters of `url`, of which one may be a
key, are not written into the cursor.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.pipelines.connectors.contract import Needs, Outage, Place
from ottla.pipelines.connectors.formats.options import read_format
from ottla.pipelines.connectors.formats.schema_file import EVOLUTION, SCHEMA_FILE
from ottla.pipelines.connectors.option import Declaration, Kind, Mistake, Option
from ottla.pipelines.connectors.sources.decoding import PartReading
from ottla.pipelines.connectors.sources.hidden import hidden, letters_of_text
from ottla.pipelines.connectors.sources.json_texts import items_at, text_of
from ottla.pipelines.connectors.sources.staged import ROW, Found, staged_stream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from ottla.pipelines.connectors.formats.contract import Format

LINK: Final = "link"
_WEB: Final = ("http://", "https://")

_JSON: Final = "_ottla_json"
_PAGE: Final = "_ottla_page"
_INDEX: Final = "_ottla_index"
_BYTES: Final = "_ottla_bytes"
_DECODED: Final = "_ottla_decoded"
_COLUMNS: Final = f"{_JSON} string, {_PAGE} long, {_INDEX} long"
_WAIT: Final = (401, 403, 407, 408, 425, 429)
"""Answers that may pass: who one is was changed, or one is to come later."""
_LINK: Final = re.compile(r'<([^>]*)>\s*;[^,]*\brel="?next"?', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Page:
    """One answer: its rows, the same as they were written, where the next is (a URL), or None."""

    rows: tuple[Any, ...]
    texts: tuple[str, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Of a page: the rows that are new, by number; the largest value, and hashes of those who have
    it; hashes of those who had it when the round began."""

    fresh: list[int]
    high: Any = None
    seen: list[str] | None = None
    given: list[str] | None = None


@dataclass(frozen=True, slots=True)
class HttpPoller:
    """Asks page by page (`staged.Poller`).

    A cursor is JSON: `since`, the largest value of finished rounds; `high`, that of the round under
    way; `next` and `page`, if it is under way, and `own`, the names of parameters of `url` that
    belong to `next`; `ended`, when the last round was finished; `seen`, hashes of rows whose value
    is `high`, each as often as there are such rows; `given`, if a round is under way, those of
    `since`; `loop`, by which a round is found out that never ends (`_without_end`).
    """

    url: str
    headers: tuple[tuple[str, str], ...]
    rows_at: tuple[str, ...]
    next: str | None
    next_param: str | None
    page_param: str | None
    page_start: int
    cursor: tuple[str, ...]
    cursor_param: str | None
    every: float
    timeout: float

    @property
    def where(self) -> str:
        return shown(self.url)

    def end(self) -> Any:
        return time.time()

    def poll(self, cursor: Any, end: Any) -> Found | None:
        cursor = cursor or {}
        under_way = cursor.get("next")
        if under_way is None and end is not None and cursor.get("ended", 0.0) >= end:
            return None
        number = cursor.get("page", self.page_start) if under_way else self.page_start
        url = self._first(cursor.get("since"))
        if under_way is not None:
            url = self._with_own(under_way, cursor.get("own", ()))
        page = self._fetch(url, number)
        found = self._sorted_out(page.rows, cursor)
        then: dict[str, Any] = {
            "since": cursor.get("since"),
            "high": found.high,
            "seen": found.seen,
        }
        if page.next is None:
            # A clock that was set back must not let a run that is to end begin another round.
            then |= {"since": found.high, "ended": max(time.time(), end or 0.0)}
        else:
            following, own = self._without_own(page.next)
            then |= {"next": following, "own": own or None, "page": number + 1}
            first, _ = self._without_own(self._first(cursor.get("since")))
            known = cursor.get("loop") if under_way else None
            then["loop"] = _without_end(following, known or [_hash(_ordered(first)), 1, 0])
            then |= {"ended": cursor.get("ended", 0.0), "given": found.given}
        kept = {name: value for name, value in then.items() if value is not None}
        table = self._table([(index, page.texts[index]) for index in found.fresh], number)
        return Found((table,), kept, more=page.next is not None)

    # -- asking

    def _first(self, since: Any) -> str:
        more: dict[str, str] = {}
        if self.page_param is not None:
            more[self.page_param] = str(self.page_start)
        if self.cursor_param is not None and since is not None:
            more[self.cursor_param] = str(since)
        return with_parameters(self.url, more)

    def _without_own(self, url: str) -> tuple[str, list[str]]:
        """A URL without the parameters that it shares with ours, and their names."""
        ours, theirs = _parameters(self.url), _parameters(url)
        own = {name for name, _ in ours if _values(ours, name) == _values(theirs, name)}
        return with_parameters(url, {}, without=own), sorted(own)

    def _with_own(self, url: str, own: Sequence[str]) -> str:
        ours = [each for each in _parameters(self.url) if each[0] in own]
        query = urllib.parse.urlencode([*_parameters(url), *ours])
        return urllib.parse.urlunsplit(urllib.parse.urlsplit(url)._replace(query=query))

    def _fetch(self, url: str, number: int) -> Page:
        body, link = self._get(url)
        try:
            text = text_of(body)
            told = json.loads(text)
        except ValueError:
            raise ValueError(
                f"{shown(url)} answers with something that is no JSON: {body[:80]!r}"
            ) from None
        rows = at(told, self.rows_at)
        if not isinstance(rows, list):
            path = ".".join(self.rows_at)
            raise ValueError(
                f"{shown(url)} answers with no list of rows{f' under {path}' if path else ''}: "
                "name the field that has it with rows"
            )
        following = self._next(url, told, rows, link, number)
        if following is not None and _ordered(following) == _ordered(url):
            raise ValueError(f"{shown(url)} names itself as the next page: correct the paging")
        if following is not None and not following.startswith(_WEB):
            raise ValueError(
                f"{shown(url)} says that the next page is at {shown(following)}, and pages are "
                "asked for over http or https only"
            )
        return Page(tuple(rows), tuple(items_at(text, self.rows_at)), following)

    def _get(self, url: str) -> tuple[bytes, str]:
        given = dict(self.headers)
        if not _same_server(self.url, url):
            given = _for_strangers(given)
        request = urllib.request.Request(url, headers=given)
        try:
            with _OPENER.open(request, timeout=self.timeout) as answer:
                return answer.read(), ", ".join(answer.headers.get_all("Link") or ())
        except urllib.error.HTTPError as error:
            with error:
                sentence = f"{shown(url)} answers {error.code} {error.reason}"
                if error.code >= 500 or error.code in _WAIT:
                    raise Outage(shown(url), sentence) from None
                raise ValueError(f"{sentence}: correct url, headers or paging") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise Outage(shown(url), f"{shown(url)}: {reason}") from None

    def _next(self, url: str, told: Any, rows: list[Any], link: str, number: int) -> str | None:
        if self.page_param is not None:
            return with_parameters(url, {self.page_param: str(number + 1)}) if rows else None
        if self.next is None:
            return None
        if self.next == LINK:
            found = _LINK.search(link)
            token = found[1] if found else None
        else:
            token = at(told, tuple(self.next.split(".")))
        if token is None or token == "":
            return None
        if self.next_param is not None:
            return with_parameters(url, {self.next_param: str(token)})
        return urllib.parse.urljoin(url, str(token))

    # -- what came

    def _sorted_out(self, rows: Sequence[Any], cursor: Mapping[str, Any]) -> _Sorted:
        """The rows of a page that were not given yet.

        Rows of the last round's largest value come again in this one, wherever the server has them:
        one that begins with the newest sends them last. Of rows that are the same in everything, as
        many are given as one page has.
        """
        if not self.cursor:
            return _Sorted(list(range(len(rows))))
        high, seen = cursor.get("high"), Counter(cursor.get("seen", ()))
        given = Counter(cursor["given"]) if "given" in cursor else seen
        known, here, top = seen | given, Counter[str](), Counter(seen)
        fresh: list[int] = []
        for index, row in enumerate(rows):
            value = at(row, self.cursor)
            if value is None:
                fresh.append(index)
                continue
            try:
                if high is None or value > high:
                    high, top = value, Counter()
            except TypeError:
                raise ValueError(
                    f"{self.where}: the cursor {'.'.join(self.cursor)} is {value!r} in one row and "
                    f"{high!r} in another: it has to be numbers, or texts, in all of them"
                ) from None
            name = _hash(row)
            here[name] += 1
            if value == high:
                top[name] = max(top[name], here[name])
            if here[name] > known[name]:
                fresh.append(index)
        return _Sorted(fresh, high, list(top.elements()), list(given.elements()))

    def _table(self, rows: Sequence[tuple[int, str]], number: int) -> pa.Table:
        import pyarrow as pa

        return pa.table(
            {
                _JSON: pa.array([text for _, text in rows], pa.string()),
                _PAGE: pa.array([number] * len(rows), pa.int64()),
                _INDEX: pa.array([index for index, _ in rows], pa.int64()),
            }
        )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to other servers without what is meant for the first; by itself to FTP, too."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith(_WEB):
            scheme = urllib.parse.urlsplit(newurl).scheme
            why = f"{msg}, and leads to {scheme}"
            raise urllib.error.HTTPError(req.full_url, code, why, headers, fp)
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and not _same_server(req.full_url, newurl):
            following.headers = _for_strangers(following.headers)
        return following


_OPENER: Final = urllib.request.build_opener(_Redirects)


def _same_server(one: str, other: str) -> bool:
    first, second = urllib.parse.urlsplit(one), urllib.parse.urlsplit(other)
    if first.hostname != second.hostname or (first.scheme, second.scheme) == ("https", "http"):
        return False
    return (_port(first), _port(second)) == (80, 443) or _port(first) == _port(second)


def _port(parts: urllib.parse.SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _for_strangers(headers: Mapping[str, str]) -> dict[str, str]:
    open_to_all = ("accept", "user-agent")
    return {name: value for name, value in headers.items() if name.lower() in open_to_all}


class HttpSource(Needs):
    """Rows from a URL (`contract.Source`)."""

    def __init__(self, poller: HttpPoller, form: Format | None) -> None:
        self._poller = poller
        self._reading = None if form is None else PartReading(form)

    def stream(self, spark: SparkSession, place: Place) -> DataFrame:
        from pyspark.sql.types import LongType, StringType, StructField, StructType

        if self._reading is not None:
            self._reading.learn(lambda: self._some(place), place, self._poller.where)
        columns = StructType(
            [
                StructField(_JSON, StringType()),
                StructField(_PAGE, LongType()),
                StructField(_INDEX, LongType()),
            ]
        )
        return staged_stream(spark, place, self._poller, columns)

    def sample(self, spark: SparkSession, place: Place, count: int) -> DataFrame:
        if self._reading is not None:
            self._reading.learn(lambda: self._some(place), place, self._poller.where)
        lines = [
            (row[_JSON], row[_PAGE], row[_INDEX], number)
            for number, row in enumerate(self._first_page(place).slice(0, count).to_pylist())
        ]
        return spark.createDataFrame(lines, f"{_COLUMNS}, {ROW} long")

    def rows(self, batch: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - the name that every program has for it

        text = F.col(_JSON)
        position = {
            "url": F.lit(self._poller.where),
            "page": F.col(_PAGE),
            "row": F.col(_INDEX),
            "number": F.col(ROW),  # pages come again in the next round
        }
        if self._reading is None:
            made = hidden(position, sequence=F.col(ROW), value=text)
            return batch.select(text.alias("value"), made)
        given = batch.withColumn(_BYTES, text.cast("binary"))
        decoded = self._reading.decoded(given, _BYTES, _DECODED)
        made = hidden(position, sequence=F.col(ROW), value=text, error=F.col(f"{_DECODED}.error"))
        return decoded.select(f"{_DECODED}.value.*", made)

    def of_letters(self, letters: DataFrame, schema: StructType) -> DataFrame:
        """See `redrive`. A letter holds the row's JSON, as the server has written it."""
        return letters_of_text(letters) if self._reading is None else self._reading.letters(letters)

    def _first_page(self, place: Place) -> pa.Table:
        try:
            found = self._poller.poll(None, None)
        except Outage as outage:
            raise Outage(outage.what, f"pipeline {place.pipeline}: {outage}") from None
        except ValueError as error:
            raise ValueError(f"pipeline {place.pipeline}: {error}") from None
        assert found is not None  # without a cursor there is always a first page
        (table,) = found.tables
        return table

    def _some(self, place: Place) -> list[bytes]:
        return [text.encode() for text in self._first_page(place).column(_JSON).to_pylist()]

    def stages(self) -> bool:
        return True


def shown(url: str) -> str:
    """A URL without what may be secret: user, password and parameters."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _without_user(url: str) -> tuple[str, str | None]:
    """The URL without user and password, and the header that says them instead."""
    parts = urllib.parse.urlsplit(url)
    user, at_sign, host = parts.netloc.rpartition("@")
    if not at_sign:
        return url, None
    code = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), f"Basic {code}"


def with_parameters(url: str, more: Mapping[str, str], *, without: Iterable[str] = ()) -> str:
    """The URL with these parameters instead of those of the same names, and without others."""
    parts = urllib.parse.urlsplit(url)
    left_out = {*more, *without}
    kept = [each for each in _parameters(url) if each[0] not in left_out]
    query = urllib.parse.urlencode([*kept, *more.items()])
    return urllib.parse.urlunsplit(parts._replace(query=query))


def _parameters(url: str) -> list[tuple[str, str]]:
    return urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query, keep_blank_values=True)


def _without_end(following: str, loop: Sequence[Any]) -> list[Any]:
    """What to remember of the pages of a round; ValueError if they lead back to an earlier one.

    By Brent's way to find a cycle: one page is remembered, and another one after twice as many as
    the last time. So a cycle is found before it was gone through three times, however long it is,
    and however long the way to it.
    """
    kept, most, count = loop
    here = _hash(_ordered(following))
    if here == kept:
        raise ValueError(
            f"{shown(following)} is the next page for the second time in one round: its pages lead "
            "back to it, without an end. Correct the paging"
        )
    return [kept, most, count + 1] if count + 1 < most else [here, 2 * most, 0]


def _ordered(url: str) -> str:
    """The same for two URLs that differ in the order of their parameters."""
    query = urllib.parse.urlencode(sorted(_parameters(url)))
    return urllib.parse.urlunsplit(urllib.parse.urlsplit(url)._replace(query=query, fragment=""))


def _values(parameters: Sequence[tuple[str, str]], name: str) -> list[str]:
    return [value for each, value in parameters if each == name]


def at(value: Any, path: Sequence[str]) -> Any:
    """What is under a path of names; None if it is not there."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def _hash(row: Any) -> str:
    return hashlib.blake2b(json.dumps(row, sort_keys=True).encode(), digest_size=8).hexdigest()


def _path(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(".")) if text else ()


def _make(values: Mapping[str, Any]) -> HttpSource:
    if values["page_param"] and values["next"]:
        raise Mistake("next", "pages are numbered or linked: give page_param or next, not both")
    if values["next_param"] and values["next"] in (None, LINK):
        raise Mistake("next_param", "it is for a token: name the answer's field with next")
    if bool(values["cursor"]) != bool(values["cursor_param"]):
        raise Mistake(
            "cursor_param", "cursor is the field of a row, cursor_param how it is sent: give both"
        )
    url, who = _without_user(values["url"])
    headers = {
        "Accept": "application/json",
        "User-Agent": "ottla",
        **({} if who is None else {"Authorization": who}),
        **(values["headers"] or {}),
    }
    return HttpSource(
        HttpPoller(
            url=url,
            headers=tuple((name, str(value)) for name, value in headers.items()),
            rows_at=_path(values["rows"]),
            next=values["next"],
            next_param=values["next_param"],
            page_param=values["page_param"],
            page_start=values["page_start"],
            cursor=_path(values["cursor"]),
            cursor_param=values["cursor_param"],
            every=values["every"],
            timeout=values["timeout"],
        ),
        _format(values),
    )


def _format(values: Mapping[str, Any]) -> Format | None:
    names = ("schema", "schema_file", "evolution")
    if values["schema"] is None and values["schema_file"] is None:
        return None
    given = {name: values[name] for name in names if values[name] is not None}
    return read_format({"json": given}, "schema")


def _check_url(url: str) -> None:
    try:
        host = urllib.parse.urlsplit(url).hostname
    except ValueError:  # whose sentence shows user and password
        host = None
    if not url.startswith(_WEB) or not host:
        raise ValueError("a URL begins with http:// or https:// and names a host")


SOURCE: Final = Declaration(
    "http",
    "rows from a URL that answers with JSON",
    (
        Option(
            "url",
            Kind.TEXT,
            "what is asked",
            required=True,
            secret=True,
            place=shown,
            check=_check_url,
        ),
        Option("headers", Kind.MAP, "headers of every request, such as Authorization", secret=True),
        Option("rows", Kind.TEXT, "the answer's field that has the rows, `data.items`; all of it"),
        Option("schema", Kind.TEXT, "the columns, `id long, name string`; `value`, its JSON, else"),
        SCHEMA_FILE,
        EVOLUTION,
        Option(
            "next",
            Kind.TEXT,
            "where the next page is: `link` for the header Link, or the answer's field with a URL "
            "or token",
        ),
        Option("next_param", Kind.TEXT, "the parameter that the token is sent as"),
        Option("page_param", Kind.TEXT, "the parameter with the number of a page"),
        Option("page_start", Kind.INTEGER, "the number of the first page", default=1),
        Option("cursor", Kind.TEXT, "the row's field that grows, `updated_at`"),
        Option("cursor_param", Kind.TEXT, "the parameter that its largest value is sent as"),
        Option("every", Kind.DURATION, "how long after a round the next begins", default=10.0),
        Option("timeout", Kind.DURATION, "how long an answer may take", default=30.0),
    ),
    _make,
)
