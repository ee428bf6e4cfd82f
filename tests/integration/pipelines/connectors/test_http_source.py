"""Pages of a real web server: paging, cursors, and what goes wrong."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ottla.pipelines.connectors.contract import Outage
from ottla.pipelines.connectors.option import Mistake
from ottla.pipelines.connectors.sources import http as http_source
from ottla.pipelines.connectors.sources.http import (
    SOURCE,
    HttpPoller,
    HttpSource,
    shown,
    with_parameters,
)
from ottla.testing.connectors import made

DEFAULTS = {option.name: option.default for option in SOURCE.options}


class Shop:
    """Answers with what `answer` says to a path's parameters: (status, body, headers)."""

    def __init__(self) -> None:
        self.answer: Callable[[dict[str, str]], tuple[int, Any, dict[str, str]]]
        self.asked: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                given = {
                    name: value[0] for name, value in parse_qs(urlsplit(self.path).query).items()
                }
                shop.asked.append(given)
                shop.headers.append(dict(self.headers))
                status, body, headers = shop.answer(given)
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/orders"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = Shop()
    yield made
    made.close()


def source(url: str, **options: Any) -> HttpPoller:
    made = SOURCE.make({**DEFAULTS, "url": url, **options})
    assert isinstance(made, HttpSource)
    return made._poller


class Pull:
    def __init__(self, url: str, **options: Any) -> None:
        self.poller = source(url, **options)
        self.cursor: Any = None

    def rows(self, *, end: Any = None) -> list[Any]:
        """Those of one round."""
        found: list[Any] = []
        while True:
            answer = self.poller.poll(self.cursor, end)
            if answer is None:
                return found
            for table in answer.tables:
                found += [json.loads(text) for text in table.column("_ottla_json").to_pylist()]
            self.cursor = json.loads(json.dumps(answer.cursor))
            if not answer.more:
                return found


def test_one_page_is_read_in_every_round(shop: Shop) -> None:
    shop.answer = lambda _: (200, [{"id": 1}, {"id": 2}], {})
    pull = Pull(shop.url, headers={"Authorization": "Bearer t"})
    assert pull.rows() == pull.rows() == [{"id": 1}, {"id": 2}]
    assert shop.headers[0]["Authorization"] == "Bearer t"
    end = pull.poller.end()
    assert len(pull.rows(end=end)) == 2
    assert pull.rows(end=end) == []


def test_pages_are_numbered_up_to_the_first_that_is_empty(shop: Shop) -> None:
    pages = {"1": [1, 2], "2": [3], "3": []}
    shop.answer = lambda given: (200, {"data": {"items": pages[given["page"]]}}, {})
    pull = Pull(shop.url + "?size=2", rows="data.items", page_param="page")
    assert pull.rows() == [1, 2, 3]
    assert [given["page"] for given in shop.asked] == ["1", "2", "3"]
    assert {given["size"] for given in shop.asked} == {"2"}


def test_pages_are_linked_by_a_header(shop: Shop) -> None:
    def answer(given: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        if "after" in given:
            return 200, [2], {"Link": '</orders>; rel="first"'}
        return 200, [1], {"Link": '</x>; rel="prev", </orders?after=1>; rel="next"'}

    shop.answer = answer
    assert Pull(shop.url, next="link").rows() == [1, 2]


def test_pages_are_linked_by_a_token(shop: Shop) -> None:
    def answer(given: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        last = given.get("token") == "b&c"
        return 200, {"rows": [2 if last else 1], "page": {"next": None if last else "b&c"}}, {}

    shop.answer = answer
    assert Pull(shop.url, rows="rows", next="page.next", next_param="token").rows() == [1, 2]


@pytest.mark.parametrize("how", [{"page_param": "page"}, {"next": "link"}])
def test_no_parameter_of_the_url_is_in_the_cursor_which_the_checkpoint_keeps(
    shop: Shop, how: dict[str, str]
) -> None:
    def answer(given: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        if given["page"] == "2":
            return 200, [], {}
        return 200, [1], {"Link": '</orders?key=s3cret&of=a&of=b&page=2&size=5>; rel="next"'}

    shop.answer = answer
    url = f"{shop.url}?key=s3cret&of=a&of=b&page=1&size=9"
    poller = source(url, **how)
    found = poller.poll(None, None)
    assert found is not None
    assert "s3cret" not in json.dumps(found.cursor)
    assert poller.poll(found.cursor, None)
    assert shop.asked[-1]["key"] == "s3cret"
    assert poller._with_own(found.cursor["next"], found.cursor["own"]).count("of=") == 2
    assert shop.asked[-1]["size"] == ("5" if "next" in how else "9")


@pytest.fixture
def stranger() -> Iterator[Shop]:
    made = Shop()
    yield made
    made.close()


@pytest.mark.parametrize("status", [200, 302])
def test_headers_are_sent_to_nobody_but_the_server_of_the_url(
    shop: Shop, stranger: Shop, status: int
) -> None:
    elsewhere = stranger.url + "?token=1"
    stranger.answer = lambda _: (200, [2], {})
    shop.answer = lambda _: (
        status,
        [1],
        {"Link": f'<{elsewhere}>; rel="next"'} if status == 200 else {"Location": elsewhere},
    )
    pull = Pull(shop.url, next="link", headers={"Authorization": "Bearer s3cret", "X-Key": "s3c"})
    assert pull.rows()[-1:] == [2]
    assert shop.headers[0]["Authorization"] == "Bearer s3cret"
    assert not {"Authorization", "X-Key"} & stranger.headers[0].keys()
    assert stranger.headers[0]["User-Agent"] == "ottla"


def test_a_next_page_that_is_a_file_of_this_machine_is_not_read(shop: Shop, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('["s3cret"]')
    shop.answer = lambda _: (200, [1], {"Link": f'<{secret.as_uri()}>; rel="next"'})
    with pytest.raises(ValueError, match="http or https"):
        Pull(shop.url, next="link").rows()


def test_a_page_that_names_itself_as_the_next_is_not_read_without_end(shop: Shop) -> None:
    shop.answer = lambda _: (200, {"rows": [1], "next": shop.url}, {})
    with pytest.raises(ValueError, match="names itself as the next page"):
        Pull(shop.url, rows="rows", next="next").rows()


def test_nor_is_one_that_names_its_parameters_in_another_order(shop: Shop) -> None:
    """Those of the URL, which the cursor does not keep, are put behind the others."""
    following = f"{shop.url}?key=k&page=2"
    shop.answer = lambda given: (200, {"rows": [given.get("page", "1")], "next": following}, {})
    pull = Pull(f"{shop.url}?key=k", rows="rows", next="next")
    with pytest.raises(ValueError, match="names itself as the next page"):
        pull.rows()
    assert len(shop.asked) == 2


@pytest.mark.parametrize(("way", "cycle"), [(0, 2), (1, 2), (2, 3), (5, 7), (40, 3)])
@pytest.mark.parametrize("rows", [["row"], []])
def test_pages_that_lead_back_to_an_earlier_one_are_not_read_without_end(
    shop: Shop, way: int, cycle: int, rows: list[str]
) -> None:
    def answer(given: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        page = int(given.get("page", 0)) + 1
        page = page if page < way + cycle else way
        target = f"{shop.url}?page={page}" if page else shop.url
        return 200, {"rows": rows, "next": target}, {}

    shop.answer = answer
    with pytest.raises(ValueError, match="lead back"):
        Pull(shop.url, rows="rows", next="next").rows()
    assert len(shop.asked) <= 3 * (way + cycle)


def test_many_pages_are_no_circle(shop: Shop) -> None:
    def answer(given: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        page = int(given.get("page", 0))
        return 200, {"rows": [page], "next": page + 1 if page < 50 else None}, {}

    shop.answer = answer
    pull = Pull(shop.url, rows="rows", next="next", next_param="page")
    assert pull.rows() == pull.rows() == list(range(51))


def test_a_clock_that_is_set_back_begins_no_other_round(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.answer = lambda _: (200, [1], {})
    pull = Pull(shop.url)
    end = pull.poller.end()
    monkeypatch.setattr(http_source, "time", SimpleNamespace(time=lambda: end - 3600))
    assert (pull.rows(end=end), pull.rows(end=end)) == ([1], [])


def test_a_round_begins_after_the_largest_cursor_and_gives_nothing_twice(shop: Shop) -> None:
    there = [{"id": 1, "at": 5}, {"id": 2, "at": 7}, {"id": 3, "at": 7}, {"id": 4}]

    def answer(given: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        since = int(given.get("since", 0))
        return 200, [row for row in there if row.get("at", since) >= since], {}

    shop.answer = answer
    pull = Pull(shop.url, cursor="at", cursor_param="since")
    assert [row["id"] for row in pull.rows()] == [1, 2, 3, 4]
    there.pop()
    assert pull.rows() == []
    there += [{"id": 5, "at": 7}, {"id": 6, "at": 9}]
    assert [row["id"] for row in pull.rows()] == [5, 6]
    assert [given.get("since") for given in shop.asked] == [None, "7", "7"]


@pytest.mark.parametrize("paging", [{}, {"page_param": "page"}])
def test_nothing_comes_twice_from_a_server_that_begins_with_the_newest(
    shop: Shop, paging: dict[str, Any]
) -> None:
    there = [{"id": 2, "at": 7}, {"id": 1, "at": 5}]

    def answer(given: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        since, page = int(given.get("since", 0)), int(given.get("page", 0))
        found = [row for row in there if row["at"] >= since]
        return 200, found[page - 1 : page] if page else found, {}

    shop.answer = answer
    pull = Pull(shop.url, cursor="at", cursor_param="since", **paging)
    assert [row["id"] for row in pull.rows()] == [2, 1]
    there.insert(0, {"id": 3, "at": 9})
    assert [row["id"] for row in pull.rows()] == [3]
    there.insert(0, {"id": 4, "at": 9})
    assert [row["id"] for row in pull.rows()] == [4]
    assert pull.rows() == []


def test_rows_that_are_the_same_in_one_answer_are_as_many(shop: Shop) -> None:
    there = [{"at": 5}, {"at": 7}, {"at": 7}]

    def answer(given: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        since = int(given.get("since", 0))
        return 200, [row for row in there if row["at"] >= since], {}

    shop.answer = answer
    pull = Pull(shop.url, cursor="at", cursor_param="since")
    assert pull.rows() == there
    assert pull.rows() == []
    there.append({"at": 7})
    assert pull.rows() == [{"at": 7}]
    assert pull.rows() == []


def test_the_cursor_of_an_earlier_version_is_understood(shop: Shop) -> None:
    row = {"id": 1, "at": 7}
    shop.answer = lambda _: (200, [{"id": 2, "at": 9}, row], {})
    pull = Pull(shop.url, cursor="at", cursor_param="since")
    pull.cursor = {"since": 7, "high": 7, "seen": [http_source._hash(row)], "ended": 0.0}
    assert [row["id"] for row in pull.rows()] == [2]


def test_a_cursor_that_cannot_be_compared_is_said(shop: Shop) -> None:
    shop.answer = lambda _: (200, [{"at": 1}, {"at": "soon"}], {})
    with pytest.raises(ValueError, match="numbers, or texts, in all of them"):
        Pull(shop.url, cursor="at", cursor_param="since").rows()


def test_a_user_in_the_url_is_sent_as_a_header(shop: Shop) -> None:
    shop.answer = lambda _: (200, [], {})
    Pull(shop.url.replace("//", "//ann:a%40b@")).rows()
    assert shop.headers[0]["Authorization"] == "Basic YW5uOmFAYg=="


def test_a_round_that_was_cut_off_goes_on_with_its_page(shop: Shop) -> None:
    down = False

    def answer(given: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        if down:
            return 503, {}, {}
        number = int(given["page"])
        return 200, [{"id": number}] if number < 3 else [], {}

    shop.answer = answer
    poller = source(shop.url, page_param="page")
    first = poller.poll(None, None)
    assert first is not None
    down = True
    with pytest.raises(Outage, match="answers 503"):
        poller.poll(first.cursor, None)
    down = False
    poller.poll(first.cursor, None)
    assert [given["page"] for given in shop.asked] == ["1", "2", "2"]


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_what_may_pass_is_an_outage(shop: Shop, status: int) -> None:
    shop.answer = lambda _: (status, {}, {})
    with pytest.raises(Outage, match=f"/orders answers {status}"):
        Pull(shop.url + "?key=s3cret").rows()


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (404, {}, "answers 404 Not Found: correct url, headers or paging"),
        (200, b"<html>", "something that is no JSON: b'<html>'"),
        (200, {"rows": []}, "no list of rows: name the field that has it with rows"),
    ],
)
def test_what_does_not_pass_is_said_without_the_parameters(
    shop: Shop, status: int, body: Any, sentence: str
) -> None:
    shop.answer = lambda _: (status, body, {})
    with pytest.raises(ValueError, match=sentence) as told:
        Pull(shop.url + "?key=s3cret").rows()
    assert "s3cret" not in str(told.value)


def test_nobody_listens() -> None:
    with pytest.raises(Outage, match=r"http://127.0.0.1:1/x: .*refused"):
        Pull("http://ann:s3cret@127.0.0.1:1/x?key=s3cret").rows()


def test_of_a_url_only_what_is_no_secret_is_shown() -> None:
    assert (
        shown("https://ann:pw@shop.example:8443/a/b?token=x#y") == "https://shop.example:8443/a/b"
    )
    assert with_parameters("http://a/b?x=1&y=", {"x": "2 3"}) == "http://a/b?y=&x=2+3"


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"url": "ftp://a"}, "url"),
        ({"next": "link", "page_param": "page"}, "next"),
        ({"next_param": "token"}, "next_param"),
        ({"cursor": "at"}, "cursor_param"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: dict[str, Any], option: str) -> None:
    with pytest.raises(Mistake) as told:
        made(SOURCE, **{"url": "http://a", **options})
    assert told.value.option == option


def test_a_redirect_to_something_that_is_no_web_page_is_not_followed(shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.setblocking(False)
        port = stranger.getsockname()[1]
        shop.answer = lambda _: (302, {}, {"Location": f"ftp://127.0.0.1:{port}/rows.json"})
        with pytest.raises(ValueError, match=r"/orders answers 302.*to ftp"):
            Pull(shop.url, timeout=1.0).rows()
        with pytest.raises(BlockingIOError):
            stranger.accept()


def test_a_row_goes_on_as_it_was_written(shop: Shop) -> None:
    """Read and written again, it would be another one, or none."""
    rows = [
        '{"amount": 12345678901234567.89, "rate": 1E400, "digits": 0.10000000000000000555}',
        '{"id": 1, "id": 2}',
        r'{"half": "\ud83d", "next": [1, {"data": []}], "": "}],"}',
        "null",
    ]
    inner = "  ,\n".join(rows)
    text = f'{{"data": [], "more": {{"data": [1]}}, "data" : [\r\n  {inner} ] , "x": 1}}'
    shop.answer = lambda _: (200, text.encode("utf-8-sig"), {})
    answer = source(shop.url, rows="data").poll(None, None)
    assert answer is not None
    [table] = answer.tables
    assert table.column("_ottla_json").to_pylist() == rows
    shop.answer = lambda _: (200, b' [ {"a":\n1} ] ', {})
    assert Pull(shop.url).rows() == [{"a": 1}]
    shop.answer = lambda _: (200, b"[]", {})
    assert Pull(shop.url).rows() == []
