"""A payment API that acts, and counts what it did."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Api:
    """Recognises the header `Idempotency-Key`. Its first answer may be late by so many milliseconds, and may be
    a 500 although it acted. Later ones are as they should be."""

    def __init__(self, hold_ms=0, fails=False):
        self.requests = 0
        self._payments = {}
        self._hold, self._fails = hold_ms / 1000, fails
        self._lock = threading.Lock()
        self._closed = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802 - the name is http.server's
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, answer = api._act(self.headers.get("Idempotency-Key"))
                body = json.dumps(answer).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass  # The caller was killed.

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _act(self, key):
        with self._lock:
            self.requests += 1
            is_first = self.requests == 1
            key = key or f"none {self.requests}"
            paid = self._payments.setdefault(key, f"payment {len(self._payments) + 1}")
        if is_first:
            self._closed.wait(self._hold)
        return (500, {"error": "no answer"}) if is_first and self._fails else (200, {"id": paid})

    def effects(self):
        """How many payments there are."""
        return len(self._payments)

    def close(self):
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
