"""A relay between an HTTP client and its server. It can drop the connection of a call."""

import socket
import threading


class Relay:
    """Relays to `url`. Each request has a connection of its own on both sides."""

    def __init__(self, url):
        _, _, place, path = url.split("/", 3)
        host, port = place.split(":")
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/{path}"
        self._cuts = False
        self._fails = False
        self._is_away = False
        # The bodies of all tool calls, as they were sent.
        self.calls = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_the_next_call(self):
        """The next tool call reaches the server, and its connection is dropped. After that nothing passes
        until `come_back`, so that a client cannot resume the stream of the answer."""
        self._cuts = True

    def fail_the_next_call(self):
        """The next tool call reaches the server, and a gateway answers 502 in its stead."""
        self._fails = True

    def come_back(self):
        self._is_away = False

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=[client], daemon=True).start()

    def _carry(self, client):
        with client:
            if self._is_away:
                return
            try:
                self._carry_one(client)
            except OSError:
                pass

    def _carry_one(self, client):
        head, body = _request(client)
        if head is None:
            return
        is_call = b'"tools/call"' in body
        if is_call:
            self.calls.append(body)
        with socket.create_connection(self._upstream) as upstream:
            upstream.sendall(head + body)
            if is_call and self._cuts:
                self._cuts, self._is_away = False, True
                client.close()
            if is_call and self._fails:
                self._fails = False
                while upstream.recv(65536):
                    pass
                client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            while data := upstream.recv(65536):
                if not self._is_away:
                    client.sendall(data)


def _request(client):
    """The head of a request, rewritten to end the connection after its answer, and the body."""
    received = b""
    while b"\r\n\r\n" not in received:
        data = client.recv(65536)
        if not data:
            return None, b""
        received += data
    head, _, body = received.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        while not body.endswith(b"0\r\n\r\n"):
            body += client.recv(65536)
    else:
        length = int(fields.get(b"content-length", b"0"))
        while len(body) < length:
            body += client.recv(65536)
    return b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n", body
