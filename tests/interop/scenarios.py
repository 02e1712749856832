"""What is done to a call, on each side of the comparison, and what it must come to.

A scenario is a function of a `Case`. It makes one call and its retry, and returns what the client got from
the retry. How many effects there must be is with its name.
"""

from dataclasses import dataclass

from case import CONTROL, DERIVED, FAILING, KEYED, LEASE, RECEIPT, TRANSACTION
from relay import Relay
from server import until

# A call is given up after the first, and takes the second. All in milliseconds. The first is also all the
# time that a connection has for its handshake, and a library for its own retry.
GIVEN_UP, SLOW, FOR_EVER = 1500, 2000, 60_000

EVERY_MODE = (TRANSACTION, LEASE, FAILING)


@dataclass
class Scenario:
    name: str
    title: str
    run: object
    modes: tuple
    transports: tuple
    sides: tuple
    # What a library must be able to do for it.
    needs: str
    # Effects without protection: a number, or one for each mode, or one for each revision.
    control: object

    def wanted(self, mode, side, library):
        if side != CONTROL:
            return 1
        if self.control == "revisions":
            return len(library.revisions)
        return self.control[mode] if isinstance(self.control, dict) else self.control

    def is_for(self, library):
        return not self.needs or self.needs in library.can or self.needs in library.revisions


ALL = []


def scenario(
    title, modes=EVERY_MODE, transports=("stdio", "http"), sides=(CONTROL, DERIVED, KEYED), needs="", control=2
):
    def register(function):
        ALL.append(Scenario(function.__name__, title, function, modes, transports, sides, needs, control))
        return function

    return register


@scenario("timeout, retry")
def timeout(case, **options):
    case.serve(hold_ms=SLOW)
    case.connect(timeoutMs=GIVEN_UP, **options)
    case.lose(case.start())
    case.until_effects(1)
    case.connect("b", **options)
    return case.retry("b")


@scenario("the same on revision 2025-06-18", needs="2025-06-18", modes=(TRANSACTION, FAILING))
def timeout_2025_06_18(case):
    return timeout(case, revision="2025-06-18")


@scenario("the same on revision 2026-07-28", needs="2026-07-28", modes=(TRANSACTION, FAILING))
def timeout_2026_07_28(case):
    return timeout(case, revision="2026-07-28")


@scenario("cancel, retry")
def cancel(case):
    case.serve(hold_ms=SLOW)
    case.connect()
    case.lose(case.start(cancelAfterMs=GIVEN_UP))
    case.until_effects(1)
    return case.retry()


# To an API that failed a server that is killed in the hold makes no difference.
@scenario("SIGKILL while it runs, retry", modes=(TRANSACTION, LEASE))
def kill_in_hold(case):
    killed_in_hold(case)
    return case.retry("b")


def killed_in_hold(case):
    case.serve(hold_ms=FOR_EVER)
    case.connect(timeoutMs=2000)
    first = case.start()
    until(lambda: case.executions() == 1, "the call to run")
    after_a_kill(case, first)


@scenario("SIGKILL between COMMIT and answer, retry")
def kill_after_commit(case):
    killed_after_commit(case)
    return case.retry("b")


def killed_after_commit(case):
    case.serve(answer_delay_ms=FOR_EVER)
    case.connect(timeoutMs=2000)
    first = case.start()
    case.until_effects(1)
    if case.mode == LEASE and not case.is_control:
        until(lambda: case.server.rows("payments") == 1, "the result to be recorded")
    after_a_kill(case, first)


def after_a_kill(case, first):
    case.server.kill()
    case.lose(first)
    case.close()
    case.serve()
    case.connect("b")


@scenario("connection dropped, same bytes on a new session", transports=("http",))
def dropped(case):
    case.serve()
    case.relay = Relay(case.url)
    case.connect(timeoutMs=2000)
    case.relay.cut_the_next_call()
    case.lose(case.start())
    case.until_effects(1)
    case.close()
    case.relay.come_back()
    # A library may first use a socket that it opened while the relay was away.
    case.connect("b", tries=3)
    answer = case.retry("b")
    first, second, *_ = case.relay.calls
    case.note = "" if first == second else "the library sent other bytes"
    return answer


@scenario("two connections at once")
def at_once(case):
    case.serve(hold_ms=SLOW // 4)
    case.connect("a")
    case.connect("b")
    running = [case.start("a"), case.start("b")]
    both = [case.attempt(future) for future in running]
    if case.is_control:
        return None
    if case.mode == FAILING:
        both = [answer or case.retry() for answer in both]
    if both[0].get("structured") != both[1].get("structured"):
        raise AssertionError(f"two receipts: {both}")
    return both[1]


@scenario("the library's own retry", needs="own_retry")
def own_retry(case):
    case.serve(hold_ms=SLOW)
    case.connect(timeoutMs=GIVEN_UP, retries=1)
    answer = case.retry(do="own_retry")
    case.until_effects(1 + case.is_control)
    return answer


@scenario("a gateway answers 502, and the library repeats the call", transports=("http",), needs="gateway")
def gateway(case):
    case.serve()
    case.relay = Relay(case.url)
    case.connect(retries=1)
    case.relay.fail_the_next_call()
    return case.retry()


# Where the API fails, so does the node's first attempt.
@scenario("a node that raises after its call", needs="node", control={TRANSACTION: 2, LEASE: 2, FAILING: 3})
def node(case):
    case.serve()
    case.connect()
    return case.retry(do="node")


@scenario("a call of two rounds: its last answer is lost, and all rounds are sent again", needs="rounds")
def rounds(case):
    case.serve(hold_ms=SLOW)
    options = {"revision": "2026-07-28", "agrees": True}
    case.connect(timeoutMs=GIVEN_UP, **options)
    case.lose(case.start(suffix="_if_agreed"))
    case.until_effects(1)
    case.connect("b", **options)
    return case.retry("b", suffix="_if_agreed")


@scenario("one key, other arguments", sides=(KEYED,))
def other_arguments(case):
    case.serve()
    case.connect()
    case.attempt(case.start())
    case.refusal = case.refused(amount_cents=2999)


@scenario("one key, on each revision that the library speaks", needs="revisions", control="revisions")
def revisions(case):
    case.serve()
    for place, revision in enumerate(case.client.revisions):
        case.connect(revision, revision=revision)
        answer = case.attempt(case.start(revision)) if place == 0 else case.retry(revision)
    return answer


@scenario("an API acts and answers 500, retry", modes=(FAILING,))
def outside(case):
    case.serve()
    case.connect()
    case.refusal = case.refused()
    return case.retry()


@scenario("the same, and the tool may not run again", modes=(FAILING,), sides=(DERIVED, KEYED))
def outside_once(case):
    sent_or_not(case)
    case.refusal = case.refused(tool=RECEIPT)
    if case.executions() != 1:
        raise AssertionError(f"the message was sent {case.executions()} times")


def sent_or_not(case):
    case.serve()
    case.connect()
    case.refused(tool=RECEIPT)


@scenario("SIGKILL, the status of the lost call asked, then decided", modes=(TRANSACTION, LEASE), needs="status")
def status(case):
    if case.mode == TRANSACTION:
        killed_after_commit(case)
        state = "completed"
    else:
        killed_in_hold(case)
        state = "in_doubt"
    said = case.decided("b")[-1]
    if said["next"] != "retry_same_key" or said["state"] not in ("", state):
        raise AssertionError(f"not the status of this call: {said}")
    return case.retry("b")


@scenario("the same, and the tool may not run again", modes=(FAILING,), sides=(DERIVED, KEYED), needs="status")
def status_once(case):
    sent_or_not(case)
    said = case.decided(tool=RECEIPT)[-1]
    if (said["state"], said["next"]) != ("in_doubt", "ask_operator"):
        raise AssertionError(f"the client would repeat the call: {said}")
