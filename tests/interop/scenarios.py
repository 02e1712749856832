"""What is done to a call, on each side of the comparison, and what it must come to.

A scenario is a function of a `Case`. It makes one call and its retry, and returns what the client got from
the retry. How many effects there must be is with its name.
"""

import tempfile
import uuid
from dataclasses import dataclass, field

from api import Api
from client import Failed
from relay import Relay
from server import Payments, until

# The sides: without protection, protected without a key, protected with one.
CONTROL, DERIVED, KEYED = "control", "derived", "keyed"

# A call is given up after the first, and takes the second. All in milliseconds. The first is also all the
# time that a connection has for its handshake, and a library for its own retry.
GIVEN_UP, SLOW, FOR_EVER = 1500, 2000, 60_000


@dataclass
class Scenario:
    name: str
    title: str
    run: object
    control: int
    transports: tuple
    sides: tuple
    # What a library must be able to do for it.
    needs: str


ALL = []


def scenario(title, control=2, transports=("stdio", "http"), sides=(CONTROL, DERIVED, KEYED), needs=""):
    def register(function):
        ALL.append(Scenario(function.__name__, title, function, control, transports, sides, needs))
        return function

    return register


@dataclass
class Case:
    """One scenario with one library, over one transport, on one side."""

    driver: object
    client: object
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

    def serve(self, *flags):
        """Has the server that is connected to from now on."""
        self._flags = flags
        self._url = self.server.serve(*flags) if self.transport == "http" else None

    def connect(self, name="a", tries=1, **options):
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

    def start(self, name="a", do="call", **command):
        command.setdefault("tool", "charge_card_unprotected" if self.is_control else "charge_card")
        command.setdefault("arguments", {"customer": "Ann", "amount_cents": 1999})
        if self.side == KEYED:
            command["key"] = self.key
        return self.driver.start(do=do, on=name, **command)

    def call(self, name="a", **command):
        return self.start(name, **command).result(timeout=90)

    def lose(self, future):
        """Waits for a call that must not be answered with a result."""
        try:
            answer = future.result(timeout=90)
        except Failed:
            return
        raise AssertionError(f"a call that should be lost was answered: {answer}")

    def retry(self, name="a", **command):
        """The retry. Without protection it may be lost as the first call was; protected it must not be."""
        try:
            return self.call(name, **command)
        except Failed:
            if not self.is_control:
                raise
            return None

    def until_effects(self, count):
        until(lambda: self.server.effects() >= count, f"{count} effects")


@scenario("timeout, retry")
def timeout(case):
    case.serve("--hold-ms", str(SLOW))
    case.connect(timeoutMs=GIVEN_UP)
    case.lose(case.start())
    case.until_effects(1)
    case.connect("b")
    return case.retry("b")


@scenario("cancel, retry")
def cancel(case):
    case.serve("--hold-ms", str(SLOW))
    case.connect()
    case.lose(case.start(cancelAfterMs=GIVEN_UP))
    case.until_effects(1)
    return case.retry()


@scenario("SIGKILL while it runs, retry")
def kill_in_hold(case):
    case.serve("--hold-ms", str(FOR_EVER))
    case.connect(timeoutMs=2000)
    first = case.start()
    until(lambda: case.server.executions() == 1, "the call to run")
    return after_a_kill(case, first)


@scenario("SIGKILL between COMMIT and answer, retry")
def kill_after_commit(case):
    case.serve("--answer-delay-ms", str(FOR_EVER))
    case.connect(timeoutMs=2000)
    first = case.start()
    case.until_effects(1)
    return after_a_kill(case, first)


def after_a_kill(case, first):
    case.server.kill()
    case.lose(first)
    case.close()
    case.serve()
    case.connect("b")
    return case.retry("b")


@scenario("connection dropped, same bytes on a new session", transports=("http",))
def dropped(case):
    case.serve()
    case.relay = Relay(case._url)
    case.connect(timeoutMs=2000)
    case.relay.cut_the_next_call()
    case.lose(case.start())
    case.until_effects(1)
    case.close()
    case.relay.come_back()
    # A library may first use a socket that it opened while the relay was away.
    case.connect("b", tries=3)
    answer = case.retry("b")
    first, second = case.relay.calls
    case.note = "" if first == second else "the library sent other bytes"
    return answer


@scenario("two connections at once")
def at_once(case):
    case.serve("--hold-ms", str(SLOW // 4))
    case.connect("a")
    case.connect("b")
    first, second = case.start("a"), case.start("b")
    answers = [first.result(timeout=90), second.result(timeout=90)]
    if not case.is_control and answers[0]["structured"] != answers[1]["structured"]:
        raise AssertionError(f"two receipts: {answers}")
    return answers[1]


@scenario("the library's own retry", needs="own_retry")
def own_retry(case):
    case.serve("--hold-ms", str(SLOW))
    case.connect(timeoutMs=GIVEN_UP, retries=1)
    answer = case.retry(do="own_retry")
    case.until_effects(1 + case.is_control)
    return answer


@scenario("a gateway answers 502, and the library repeats the call", transports=("http",), needs="gateway")
def gateway(case):
    case.serve()
    case.relay = Relay(case._url)
    case.connect(retries=1)
    case.relay.fail_the_next_call()
    return case.call()


@scenario("a node that raises after its call", needs="node")
def node(case):
    case.serve()
    case.connect()
    return case.call(do="node")


@scenario("one key, other arguments", sides=(KEYED,))
def other_arguments(case):
    case.serve()
    case.connect()
    answer = case.call()
    case.refusal = refused(case, arguments={"customer": "Ann", "amount_cents": 2999})
    return answer


@scenario("one key, two revisions", needs="revisions")
def two_revisions(case):
    case.serve()
    for name, revision in zip("ab", case.client.revisions):
        case.connect(name, revision=revision)
        answer = case.call(name)
    return answer


@scenario("an API acts and answers 500, retry")
def outside(case):
    case.api = Api()
    case.serve("--payment-url", case.api.url)
    case.connect()
    command = {
        "tool": "pay_invoice_unprotected" if case.is_control else "pay_invoice",
        "arguments": {"invoice": "7", "amount_cents": 1999},
    }
    case.refusal = refused(case, **command)
    return case.call(**command)


@scenario("the same, and the tool may not run again", sides=(DERIVED, KEYED))
def outside_once(case):
    case.api = Api()
    case.serve("--receipt-url", case.api.url)
    case.connect()
    command = {"tool": "send_receipt", "arguments": {"customer": "Ann", "message": "Thanks"}}
    refused(case, **command)
    case.refusal = refused(case, **command)
    if case.api.requests != 1:
        raise AssertionError(f"the message was sent {case.api.requests} times")
    return None


def refused(case, **command):
    """What the client is told by a call that must be refused or fail."""
    try:
        answer = case.call(**command)
    except Failed as failed:
        return failed
    if not answer.get("isError"):
        raise AssertionError(f"not refused: {answer}")
    return answer
