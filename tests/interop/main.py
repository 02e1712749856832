#!/usr/bin/env python3
"""Runs each scenario with each client library, counts effects, and writes docs/interop.md.

    tests/run --interop                       what a run of everything does
    tests/run --interop -- --long             every case; it takes about three times as long
    tests/run --interop -- --client mcp_1     one library; may be repeated
    tests/run --interop -- --scenario timeout one scenario; may be repeated
    tests/run --interop -- --write            every case, and writes docs/interop.md

It needs Python 3.11 or newer, Node.js 20 or newer, and the built example `payments`.
"""

import argparse
import difflib
import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import page
from case import CONTROL, FAILING, LEASE, Case
from client import HERE, Driver, Failed
from install import NotInstalled, install
from libraries import LIBRARIES
from scenarios import ALL

ROOT = HERE.parent.parent


@dataclass
class Row:
    """What became of one case."""

    client: object
    scenario: object
    mode: str
    transport: str
    side: str
    effects: int = -1
    executions: int = -1
    answer: object = None
    refusal: object = None
    note: str = ""
    failure: str = ""


def cases(library, scenarios, is_long):
    for scenario in scenarios:
        if not scenario.is_for(library):
            continue
        for mode in scenario.modes:
            for transport in scenario.transports:
                for side in scenario.sides:
                    if is_long or is_short(scenario, mode, transport, side):
                        yield scenario, mode, transport, side


def is_short(scenario, mode, transport, side):
    """Whether a run of everything has this case. In lease mode it takes the API that fails, if the scenario
    has it, and one transport. What the library does with an unprotected tool does not depend on the mode."""
    if mode not in (LEASE, FAILING):
        return True
    is_harder = mode == FAILING or FAILING not in scenario.modes
    return is_harder and transport == "http" and (side != CONTROL or len(scenario.modes) == 1)


def run_case(driver, library, program, scenario, mode, transport, side):
    row = Row(library, scenario, mode, transport, side)
    try:
        with Case(driver, library, mode, transport, side, program) as case:
            row.answer = scenario.run(case)
            wanted = scenario.wanted(mode, side, library)
            if side == CONTROL:
                case.until_effects(wanted)
            row.effects = case.effects()
            row.executions = case.executions()
            row.refusal, row.note = case.refusal, case.note
            if row.effects != wanted:
                row.failure = f"{row.effects} effects, not {wanted}"
    except (AssertionError, Failed, KeyError, OSError, TimeoutError) as error:
        row.failure = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
    return row


def run_library(library, home, program, scenarios, is_long):
    """All cases of a library, one after the other in one process of its driver."""
    home.mkdir(parents=True, exist_ok=True)
    driver = Driver(library, home.parent / "debug" if library.program else install(library, home), home)
    rows = []
    try:
        for each in cases(library, scenarios, is_long):
            row = run_case(driver, library, program, *each)
            rows.append(row)
            said = "ok" if not row.failure else f"FAILED: {row.failure}"
            print(f"{named(row)}: {said}", flush=True)
    finally:
        driver.end()
    return rows


def named(row):
    return f"{row.client.folder} {row.scenario.name} {row.mode} {row.transport} {row.side}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", action="append", choices=[library.folder for library in LIBRARIES])
    parser.add_argument("--scenario", action="append", choices=[scenario.name for scenario in ALL])
    parser.add_argument("--long", action="store_true", help="every case")
    parser.add_argument("--write", action="store_true", help="every case, and write docs/interop.md")
    asked = parser.parse_args()
    is_long = asked.long or asked.write

    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute()
    program = target / "debug/examples/payments"
    if not program.exists():
        sys.exit(f"{program} is missing: cargo build --example payments")
    libraries = [library for library in LIBRARIES if not asked.client or library.folder in asked.client]
    scenarios = [scenario for scenario in ALL if not asked.scenario or scenario.name in asked.scenario]

    rows, not_run = [], []
    with ThreadPoolExecutor(max_workers=7) as pool:
        running = [
            (library, pool.submit(run_library, library, target / "interop", program, scenarios, is_long))
            for library in libraries
        ]
        for library, future in running:
            try:
                rows += future.result()
            except NotInstalled as error:
                not_run.append(library)
                print(f"not run: {library.title}: {error}", file=sys.stderr)

    failures = [row for row in rows if row.failure]
    is_whole = not (asked.client or asked.scenario or not_run)
    is_drifted = False
    if is_whole and not failures:
        text, file = page.page(rows), ROOT / "docs/interop.md"
        if asked.write:
            file.write_text(text)
        is_drifted = not file.exists() or file.read_text() != text
        if is_drifted:
            said = difflib.unified_diff(file.read_text().splitlines(), text.splitlines(), "the page", "this run", n=0)
            print("\n".join(said))
            print("docs/interop.md differs from this run. Write it with `tests/run --interop -- --write`.")
    for row in failures:
        print(f"{named(row)}: {row.failure}")
    failed = len(failures) + is_drifted
    print(f"test result: {len(rows) - len(failures)} passed; {failed} failed; {len(not_run)} ignored")
    if not_run:
        print(f"not run: {', '.join(library.title for library in not_run)}")
    sys.exit(bool(failed or (not_run and os.environ.get("CI") == "true")))


if __name__ == "__main__":
    main()
