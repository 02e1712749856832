"""docs/interop.md, from the rows of a whole run."""

import re

from case import CONTROL, FAILING, KEYED, LEASE, TRANSACTION
from client import Failed
from libraries import LIBRARIES
from scenarios import ALL

LETTERS = {TRANSACTION: "T", LEASE: "L", FAILING: "F"}

HEAD = """\
# Client libraries

<!-- Written by `tests/run --interop -- --write`. Do not edit it by hand. -->

What happens when the calls of a client library are lost and repeated, without this crate and with it? This page is the
report of a run. {libraries} pinned releases, unchanged, call the example `payments`, each through its own interface.
No model is involved. The run fails if a number differs, or if a line of this page does.

```sh
tests/run --interop                      # what a run of all tests does: fewer cases of lease mode
tests/run --interop -- --long            # every case
tests/run --interop -- --client mcp_2    # one library
```

## Effects

A cell is the number of effects that one call and its retry had: charges that were committed in the database, or
payments in the other system. Left of the arrow is the same tool without protection. Right of it is the protected tool,
once without a key and once with one; both had that number.

The letters say in which modes the row was run, each with the same numbers unless two are given. **T**: transaction mode,
on SQLite. **L**: lease mode; the tool acts through an API that recognises keys, and may run again when its outcome is not
known. **F**: the same, and the API acts and answers 500 at first.
"""

HOW = """
The number is the same over stdio and over HTTP, except in the two rows about dropped connections and gateways, which are
about HTTP only. A dash means that the library does nothing of the kind by itself: it retries nothing, cannot be told a
revision, asks its user nothing, or has no interface for a request that is not MCP's own (the status). Where the tool
"may not run again", a retry is refused and the status says `ask_operator`. {bytes}
"""

PLACES = """
## How a key is set

A library that sends `_meta` puts the key there. The others send it as the argument `idempotency_key`, which the tool
offers (`key_argument`). The lines below are those that the scenarios run.
"""

SEEN = """
## What a caller sees

"Refused" is what the library makes of one key that was used again with other arguments (a conflict). "Replay" says
where a caller can see that a result is that of an earlier call: in `_meta`, or in the text of the result, where
`with_announced_replays(true)` puts it.
"""


def page(rows):
    text = "\n".join([_head(rows), _snippets(), _seen(rows)])
    return re.sub("\n{3,}", "\n\n", text)


def _table(header, lines):
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *lines])


def _short(title):
    return title.split(" ", 1)[1]


def _cell(scenario, library, rows):
    """The effects of one library in one scenario. They are what is wanted, or the run has failed; so this also
    holds for the cases that a short run leaves out."""
    if not scenario.is_for(library):
        return "–"
    assert all(row.effects == scenario.wanted(row.mode, row.side, library) for row in rows)

    def counts(sides):
        found = {scenario.wanted(mode, side, library) for mode in scenario.modes for side in sides}
        return ", ".join(map(str, sorted(found)))

    right = counts([side for side in scenario.sides if side != CONTROL])
    return f"{counts([CONTROL])} → {right}" if CONTROL in scenario.sides else right


def _head(rows):
    shown = [library for library in LIBRARIES if any(row.client == library for row in rows)]
    lines = []
    for scenario in ALL:
        cells = [
            _cell(scenario, library, [row for row in rows if row.scenario == scenario and row.client == library])
            for library in shown
        ]
        modes = " ".join(LETTERS[mode] for mode in scenario.modes)
        lines.append([scenario.title, modes, *cells])
    header = ["", "", *(_short(library.title) for library in shown)]
    dropped = next(scenario for scenario in ALL if scenario.name == "dropped")
    others = {row.client.title for row in rows if row.scenario == dropped and row.note}
    if others:
        said = f"After the dropped connection these libraries sent other bytes: {'; '.join(sorted(map(_short, others)))}."
    else:
        said = "After the dropped connection\nevery library sent the same bytes again, with the same JSON-RPC id."
    how = HOW.format(bytes=said)
    return HEAD.format(libraries=len(shown)) + "\n" + _table(header, lines) + "\n" + how


def _snippets():
    by_text = {}
    for library in LIBRARIES:
        by_text.setdefault((library.language, library.snippet()), []).append(library)
    parts = [PLACES]
    for (language, text), libraries in by_text.items():
        names = "; ".join(library.title for library in libraries)
        parts.append(f"{names}:\n\n```{language}\n{text}\n```\n")
    return "\n".join(parts)


def _seen(rows):
    lines = []
    for library in LIBRARIES:
        of_library = [row for row in rows if row.client == library]
        refusal = next(row.refusal for row in of_library if row.scenario.name == "other_arguments" and row.mode == TRANSACTION)
        replayed = next(
            row.answer
            for row in of_library
            if (row.scenario.name, row.mode, row.side) == ("cancel", TRANSACTION, KEYED)
        )
        lines.append([library.title, *_told(refusal), _replay(replayed)])
    header = ["", "refused: the caller gets", "its `data`", "the sentence", "replay"]
    return SEEN + "\n" + _table(header, lines) + "\n"


def _told(refusal):
    """How the refusal looks, where its data are, and whether its sentence can be read."""
    if isinstance(refusal, Failed):
        form, data, text = f"`{refusal.type}`", refusal.data, refusal.message
    else:
        form = "a result with `isError`"
        data, text = (refusal.get("meta") or {}).get(REFUSAL), " ".join(refusal.get("text") or [refusal.get("shown", "")])
    is_readable = "already used for a different call" in text
    return form, "yes" if isinstance(data, dict) else "no", "yes" if is_readable else "no"


REFUSAL = "io.github.mcp-idempotent/refusal"
REPLAYED = "io.github.mcp-idempotent/replayed"


def _replay(answer):
    places = []
    if REPLAYED in (answer.get("meta") or {}):
        places.append("`_meta`")
    if re.search("already executed", " ".join(answer.get("text") or [answer.get("shown") or ""])):
        places.append("text")
    return ", ".join(places) or "no"
