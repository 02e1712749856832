#!/usr/bin/env python3
"""Runs each scenario with each client library, counts effects, and writes docs/interop.md.

    tests/run --interop                       all of it
    tests/run --interop -- --client mcp_1     one library; may be repeated
    tests/run --interop -- --scenario timeout one scenario; may be repeated
    tests/run --interop -- --write            writes docs/interop.md

It needs Python 3.11 or newer, Node.js 20 or newer, and the built example `payments`.
"""

import argparse
import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import page
from client import HERE, Driver, Failed
from install import NotInstalled, install
from libraries import LIBRARIES
from scenarios import ALL, CONTROL, Case

ROOT = HERE.parent.parent


@dataclass
class Row:
    """What became of one case."""

    client: object
    scenario: object
    transport: str
    side: str
    effects: int = -1
    executions: int = -1
    answer: object = None
    refusal: object = None
    note: str = ""
    failure: str = ""


def cases(library, scenarios):
    for scenario in scenarios:
        if scenario.needs and scenario.needs not in library.can:
            continue
        for transport in scenario.transports:
            for side in scenario.sides:
                yield scenario, transport, side


def run_case(driver, library, program, scenario, transport, side):
    row = Row(library, scenario, transport, side)
    try:
        with Case(driver, library, transport, side, program) as case:
            row.answer = scenario.run(case)
            wanted = scenario.control if side == CONTROL else 1
            if side == CONTROL and not case.api:
                case.until_effects(wanted)
            row.effects = (case.api or case.server).effects()
            row.executions = case.server.executions()
            row.refusal, row.note = case.refusal, case.note
            if row.effects != wanted:
                row.failure = f"{row.effects} effects, not {wanted}"
    except (AssertionError, Failed, KeyError, OSError, TimeoutError) as error:
        row.failure = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
    return row


def run_library(library, home, program, scenarios):
    """All cases of a library, one after the other in one process of its driver."""
    home.mkdir(parents=True, exist_ok=True)
    driver = Driver(library, home.parent / "debug" if library.program else install(library, home), home)
    rows = []
    try:
        for each in cases(library, scenarios):
            row = run_case(driver, library, program, *each)
            rows.append(row)
            said = "ok" if not row.failure else f"FAILED: {row.failure}"
            scenario, transport, side = each
            print(f"{library.folder} {scenario.name} {transport} {side}: {said}", flush=True)
    finally:
        driver.end()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", action="append", choices=[library.folder for library in LIBRARIES])
    parser.add_argument("--scenario", action="append", choices=[scenario.name for scenario in ALL])
    parser.add_argument("--write", action="store_true", help="write docs/interop.md")
    asked = parser.parse_args()

    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute()
    program = target / "debug/examples/payments"
    if not program.exists():
        sys.exit(f"{program} is missing: cargo build --example payments")
    libraries = [library for library in LIBRARIES if not asked.client or library.folder in asked.client]
    scenarios = [scenario for scenario in ALL if not asked.scenario or scenario.name in asked.scenario]

    rows, not_run = [], []
    with ThreadPoolExecutor(max_workers=6) as pool:
        running = [
            (library, pool.submit(run_library, library, target / "interop", program, scenarios))
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
    if is_whole and not failures:
        text, file = page.page(rows), ROOT / "docs/interop.md"
        if asked.write:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            print("note: docs/interop.md says other words than this run; `tests/run --interop -- --write` writes it")
    for row in failures:
        print(f"{row.client.folder} {row.scenario.name} {row.transport} {row.side}: {row.failure}")
    print(f"test result: {len(rows) - len(failures)} passed; {len(failures)} failed; {len(not_run)} ignored")
    if not_run:
        print(f"not run: {', '.join(library.title for library in not_run)}")
    sys.exit(bool(failures or (not_run and os.environ.get("CI") == "true")))


if __name__ == "__main__":
    main()
