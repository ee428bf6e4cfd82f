"""What a receiver of the HTTP sink answers costs no more than a little memory."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ottla.pipelines.connectors.sinks.http import Requests, _Sender


def test_an_answer_without_an_end_is_not_read_to_its_end() -> None:
    class Endless(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(bytes(1 << 16))
            except OSError:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/"
        sender = _Sender(Requests(url, "POST", (), "Idempotency-Key", 60.0, 1), "orders")
        assert [sender.send("p1", 0, b"{}"), sender.send("p2", 0, b"{}")] == [None, None]
        sender.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
