#!/usr/bin/env python3
"""Runs the official conformance suite against a server bare, behind the layer and behind the proxy, and
compares check by check.

    tests/run --conformance

Nothing may change. The bare server need not pass every check: some are about what rmcp does. Those that it
does not pass are in `conformance.json`, each with the reason, and the run fails if that list is not true.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from client import HERE, Library
from install import NotInstalled, install

ROOT = HERE.parent.parent
SUITE = Library("conformance", "@modelcontextprotocol/conformance 0.2.0-alpha.12", source="common/driver.mjs")
REVISIONS = ("2025-06-18", "2025-11-25", "2026-07-28")
SIDES = {
    "bare": ("bare", None),
    "behind the layer": ("layer", None),
    "behind the proxy": ("bare", ["--derive", "none", "--log", "info"]),
}


# Checks that the bare server does not pass, by revision, each with the reason.
KNOWN = json.loads((HERE / "conformance.json").read_text())
PASSED = {"SUCCESS", "INFO", "SKIPPED"}


class Listening:
    """A process that says where it listens."""

    def __init__(self, *command):
        self._process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        # So that one that says nothing does not hold everybody up.
        killer = threading.Timer(30, self._process.kill)
        killer.start()
        for said in self._process.stderr:
            if found := re.search(r"127\.0\.0\.1:\d+", said):
                killer.cancel()
                self.url = f"http://{found.group()}/mcp"
                # What else it says is not read; it must not wait for a reader.
                threading.Thread(target=self._process.stderr.read, daemon=True).start()
                return
        raise AssertionError(f"{command[0]} did not start")

    def end(self):
        self._process.kill()
        self._process.wait()


def node(installed):
    """A Node.js of version 22 or newer: the suite needs it."""
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout
    if version and int(version.lstrip("v").split(".")[0]) >= 22:
        return "node"
    for program in installed.glob("node_modules/node-*/bin/node"):
        return str(program)
    raise NotInstalled("the suite needs Node.js 22 or newer")


def checks(installed, url, revision):
    """How often each check of each scenario had each status."""
    with tempfile.TemporaryDirectory(prefix="conformance.") as results:
        suite = installed / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
        asked = ["server", "--url", url, "--suite", "all", "--spec-version", revision, "-o", results]
        done = subprocess.run(
            [node(installed), suite, *asked], capture_output=True, text=True, timeout=280, check=False
        )
        counted = Counter()
        for file in Path(results).rglob("checks.json"):
            scenario = re.sub(r"-\d{4}-\d{2}-\d{2}T.*", "", file.parent.name)
            for check in json.loads(file.read_text()):
                counted[scenario, check["id"], check["status"]] += 1
        if not counted:
            raise AssertionError(f"the suite did not run:\n{(done.stdout + done.stderr)[-2000:]}")
        return counted


def run_side(installed, programs, side, revision):
    wrapping, proxy = SIDES[side]
    servers = [Listening(programs / "conformance-server", wrapping)]
    try:
        if proxy is not None:
            upstream = servers[0].url.removesuffix("/mcp")
            listen = ["--listen", "127.0.0.1:0", "--upstream", upstream, "--scope", "the suite"]
            servers.append(Listening(programs / "mcp-idempotent", *listen, *proxy))
        return checks(installed, servers[-1].url, revision)
    finally:
        for server in servers:
            server.end()


def main():
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute()
    try:
        installed = install(SUITE, target / "interop")
        node(installed)
    except NotInstalled as error:
        print(f"not run: {SUITE.title}: {error}")
        sys.exit(os.environ.get("CI") == "true")
    wanted = [(side, revision) for revision in REVISIONS for side in SIDES]
    with ThreadPoolExecutor(max_workers=3) as pool:
        found = dict(
            zip(wanted, pool.map(lambda each: run_side(installed, target / "debug", *each), wanted), strict=True)
        )
    failed = 0
    for revision in REVISIONS:
        bare = found["bare", revision]
        statuses = Counter()
        for (_, _, status), count in bare.items():
            statuses[status] += count
        said = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
        print(f"{revision}: {sum(bare.values())} checks of the bare server: {said}")
        known = KNOWN.get(revision, {})
        not_passed = {f"{scenario} {check}" for scenario, check, status in bare if status not in PASSED}
        for name in sorted(not_passed - set(known)):
            print(f"  not passed, and not in conformance.json: {name}")
        for name in sorted(set(known) - not_passed):
            print(f"  passed, although conformance.json says why it is not: {name}")
        failed += not_passed != set(known)
        for side in list(SIDES)[1:]:
            other = found[side, revision]
            print(f"  {side}: {sum(other.values())} checks, {'equal' if other == bare else 'DIFFERENT'}")
            for name, count in sorted(((bare - other) + (other - bare)).items()):
                print(f"    {' '.join(name)}: bare {bare[name]}, {side} {other[name]} ({count})")
            failed += other != bare
    runs = len(REVISIONS) * len(SIDES)
    print(f"test result: {runs - failed} passed; {failed} failed; 0 ignored")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
