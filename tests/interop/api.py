"""A payment API that acts and then fails, and counts what it did."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Api:
    """Answers its first request with 500 although it acted, and later ones as it should. It recognises the
    header `Idempotency-Key`."""

    def __init__(self):
        self.requests = 0
        self._payments = {}
        self._lock = threading.Lock()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802 - the name is http.server's
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, answer = api._act(self.headers.get("Idempotency-Key"))
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _act(self, key):
        with self._lock:
            self.requests += 1
            key = key or f"none {self.requests}"
            paid = self._payments.setdefault(key, f"payment {len(self._payments) + 1}")
            return (500, {"error": "no answer"}) if self.requests == 1 else (200, {"id": paid})

    def effects(self):
        """How many payments there are."""
        return len(self._payments)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
