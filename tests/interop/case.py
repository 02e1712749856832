"""One scenario with one library, in one mode, over one transport, on one side of the comparison."""

import tempfile
import uuid
from dataclasses import dataclass, field

from api import Api
from client import Failed
from server import Payments, until

# The sides: without protection, protected without a key, protected with one.
CONTROL, DERIVED, KEYED = "control", "derived", "keyed"

# What a call acts on: the database of its server; an API that answers; one that acts and answers 500 at first.
TRANSACTION, LEASE, FAILING = "transaction", "lease", "failing"

# How long a claim of a killed server counts. A retry waits for its end.
LEASE_MS = 4000

# The tools, and what they are called with.
CHARGE = ("charge_card", {"customer": "Ann", "amount_cents": 1999})
PAY = ("pay_invoice", {"invoice": "7", "amount_cents": 1999})
RECEIPT = ("send_receipt", {"customer": "Ann", "message": "Thanks"})


@dataclass
class Case:
    driver: object
    client: object
    mode: str
    transport: str
    side: str
    program: str
    key: str = field(default_factory=lambda: f"order 7 / {uuid.uuid4()}")
    refusal: object = None
    note: str = ""

    def __enter__(self):
        self._scratch = tempfile.TemporaryDirectory(prefix="interop.")
        self.server = Payments(self.program, self._scratch.name)
        self.relay = self.api = None
        self._flags, self._url, self._open = (), None, set()
        return self

    def __exit__(self, *_):
        for name in list(self._open):
            self.close(name)
        self.server.kill()
        for ended in (self.relay, self.api):
            if ended:
                ended.close()
        self._scratch.cleanup()

    @property
    def is_control(self):
        return self.side == CONTROL

    @property
    def url(self):
        return self._url

    def serve(self, hold_ms=0, answer_delay_ms=0):
        """Has the server that is connected to from now on. The first call is held up between its effect and the
        end of its work, and each answer after that."""
        flags = ["--answer-delay-ms", str(answer_delay_ms)]
        if self.mode == TRANSACTION:
            flags += ["--hold-ms", str(hold_ms)]
        else:
            self.api = self.api or Api(hold_ms, fails=self.mode == FAILING)
            flags += ["--payment-url", self.api.url, "--receipt-url", self.api.url, "--lease-ms", str(LEASE_MS)]
        self._flags = flags
        self._url = self.server.serve(*flags) if self.transport == "http" else None

    def connect(self, name="a", tries=1, **options):
        # Some libraries would otherwise not wait for the end of a lease.
        options.setdefault("timeoutMs", 25_000)
        if self.transport == "http":
            options["http"] = self.relay.url if self.relay else self._url
        else:
            options["stdio"] = self.server.command(*self._flags)
        while True:
            tries -= 1
            try:
                self.driver.ask(do="connect", on=name, **options)
                break
            except Failed:
                if tries == 0:
                    raise
        self._open.add(name)

    def close(self, name="a"):
        self._open.discard(name)
        try:
            self.driver.ask(do="close", on=name)
        except Failed:
            pass  # Its server may be dead.

    def command(self, tool=None, suffix="", **arguments):
        """A tool's name and arguments, and the key. Without `tool` it is the one of this mode."""
        name, usual = tool or (CHARGE if self.mode == TRANSACTION else PAY)
        suffix += "_unprotected" if self.is_control else ""
        command = {"tool": name + suffix, "arguments": {**usual, **arguments}}
        return {**command, "key": self.key} if self.side == KEYED else command

    def start(self, name="a", do="call", cancelAfterMs=None, **command):  # noqa: N803 - the driver's name
        extra = {} if cancelAfterMs is None else {"cancelAfterMs": cancelAfterMs}
        return self.driver.start(do=do, on=name, **self.command(**command), **extra)

    def call(self, name="a", **command):
        return self.start(name, **command).result(timeout=90)

    def lose(self, future):
        """Waits for a call that must not be answered with a result."""
        try:
            answer = future.result(timeout=90)
        except Failed:
            return
        raise AssertionError(f"a call that should be lost was answered: {answer}")

    def attempt(self, future, fails=True):
        """The answer of a call, or nothing if the API fails, which it may unless `fails` is false."""
        may_fail = fails and self.mode == FAILING
        try:
            answer = future.result(timeout=90)
        except Failed:
            if not may_fail:
                raise
            return None
        if answer.get("isError"):
            if not may_fail:
                raise AssertionError(f"the call failed: {answer}")
            return None
        return answer

    def retry(self, name="a", **command):
        """The retry. Without protection it may be lost as the first call was; protected it must not be. One that
        waited for the call that the API failed is told to send the same again, and does."""
        for _ in range(2 if self.mode == FAILING and not self.is_control else 1):
            try:
                answer = self.call(name, **command)
            except Failed as failed:
                answer = failed
            if isinstance(answer, dict) and not answer.get("isError"):
                return answer
        if not self.is_control:
            raise AssertionError(f"the retry failed: {answer!r}")
        return None

    def refused(self, **command):
        """What the client is told by a call that must be refused or fail."""
        try:
            answer = self.call(**command)
        except Failed as failed:
            return failed
        if not answer.get("isError"):
            raise AssertionError(f"not refused: {answer}")
        return answer

    def status(self, name="a", **command):
        """What became of a call. Control servers do not know; the client has to repeat the call."""
        if self.is_control:
            return {"state": "", "next": "retry_same_key"}
        return self.driver.start(do="status", on=name, **self.command(**command)).result(timeout=90)

    def decided(self, name="a", **command):
        """Asks for the status of a lost call until nothing runs, and returns all that was said."""
        said = [self.status(name, **command)]

        def is_decided():
            if said[-1]["next"] == "wait":
                said.append(self.status(name, **command))
            return said[-1]["next"] != "wait"

        until(is_decided, "a status other than wait")
        return said

    def effects(self):
        return (self.api or self.server).effects()

    def executions(self):
        return self.api.requests if self.api else self.server.executions()

    def until_effects(self, count):
        until(lambda: self.effects() >= count, f"{count} effects")
