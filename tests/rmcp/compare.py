#!/usr/bin/env python3
"""Runs rmcp's own tests with the handlers that they serve bare and behind the layer, and compares test by test.

    tests/run --rmcp-tests

Nothing may change. Tests that do not pass are in `known.json`, each with the reason, and the run fails if that
list is not true. `not_run.json` names the files of rmcp's that are not run.

That the handlers really are behind the layer is shown in two ways: each one that is served is counted, and
where a planted break refuses the calls instead of the layer, the tests have to notice.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# See `Side` in side.rs.
BEHIND_THE_LAYER = {
    "layer": "behind the layer",
    "keys": "behind the layer, each call with a key",
    "replays": "behind the layer, each call made twice, and answered with its replay",
}
KNOWN = json.loads((HERE / "known.json").read_text())
TIMEOUT = 240


def cargo(*arguments):
    command = ["cargo", *arguments, "--locked", "--manifest-path", HERE / "Cargo.toml"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"cargo {arguments[0]} failed, see above")
    return done.stdout


def built():
    """The program with all tests."""
    for line in cargo("test", "--no-run", "--message-format", "json-render-diagnostics").splitlines():
        artifact = json.loads(line)
        if artifact.get("executable") and artifact["target"]["name"] == "rmcp_tests":
            return artifact["executable"]
    raise AssertionError("cargo built no tests")


def rmcp():
    """The version of rmcp, and the directory into which cargo has unpacked it."""
    metadata = cargo("metadata", "--format-version", "1", "--filter-platform", "host-tuple")
    packages = json.loads(metadata)["packages"]
    found = next(package for package in packages if package["name"] == "rmcp")
    return found["version"], Path(found["manifest_path"]).parent


class Run:
    """Some of the tests, run on a side."""

    def __init__(self, program, directory, side, *which):
        with tempfile.NamedTemporaryFile("r", prefix="seen.") as seen:
            try:
                done = subprocess.run(
                    [program, *which, "--test-threads", "2"],
                    cwd=directory,
                    env=os.environ | {"RMCP_TESTS_SIDE": side, "RMCP_TESTS_SEEN": seen.name, "RUST_BACKTRACE": "0"},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=TIMEOUT,
                    check=False,
                )
                said = done.stdout
            except subprocess.TimeoutExpired as expired:
                said = (expired.stdout or b"") + f"\nnot done after {TIMEOUT} seconds\n".encode()
            self.said = said.decode(errors="replace")
            # What the handlers reported: how many were served, and how many calls they got.
            self.seen = Counter(seen.read().split())
        self.passed = set(re.findall(r"^test (\S+)(?: - should panic)? \.\.\. ok$", self.said, re.M))

    def of(self, name):
        """What a test said."""
        _, _, said = self.said.partition(f"---- {name} stdout ----\n")
        return re.split(r"\n\n(?:----|failures:)", said or self.said)[0][-2000:]


class Tests:
    def __init__(self, program, directory):
        self._start = (program, directory)
        listed = subprocess.run([program, "--list", "--format", "terse"], capture_output=True, text=True, check=True)
        self.of_file = defaultdict(set)
        # Without those at the root, which are not rmcp's: see again.rs.
        for name, file in re.findall(r"^((\w+)::\S+): test$", listed.stdout, re.M):
            self.of_file[file].add(name)

    def on(self, side, files):
        """One run for each file, as cargo does it."""
        with ThreadPoolExecutor(max_workers=3) as pool:
            return dict(zip(files, pool.map(lambda file: Run(*self._start, side, f"{file}::"), files), strict=True))

    def not_passed(self, side, files, known):
        """What each file's handlers saw, and the tests that did not pass, with what they said.

        One that fails beside others gets two more tries, alone, and more if it measures time.
        """
        runs = self.on(side, files)
        failed = {name: run.of(name) for file, run in runs.items() for name in self.of_file[file] - run.passed}
        for name in sorted(failed.keys() - known):
            for _ in range(10 if name in KNOWN["measures time"] else 2):
                run = Run(*self._start, side, "--exact", name)
                if name in run.passed:
                    print(f"  passed alone, and not beside others: {name}")
                    del failed[name]
                    break
        return {file: run.seen for file, run in runs.items()}, failed


def compare(tests):
    """Prints what came of each side. Returns how many tests are in files that serve a handler, and what is wrong."""
    wrong = []

    def check(what, found, known):
        for name in sorted(found.keys() - known):
            wrong.append(f"{what}, and not in known.json: {name}\n{found[name]}")
        for name in sorted(known - found.keys()):
            wrong.append(f"in known.json, and not true ({what}): {name}")

    names = {name for of_file in tests.of_file.values() for name in of_file}
    wrong.extend(f"in known.json, but no test: {name}" for name in KNOWN["measures time"].keys() - names)
    bare = KNOWN["on every side"].keys()
    seen, failed = tests.not_passed("bare", list(tests.of_file), bare)
    serving = [file for file in tests.of_file if seen[file]["bare"]]
    served = sum(seen[file]["bare"] for file in serving)
    total, of_serving = (sum(len(tests.of_file[file]) for file in files) for files in (tests.of_file, serving))
    print(
        f"bare: {total} tests, {len(failed)} not passed; {of_serving} of them in {len(serving)} files that serve"
        f" {served} handlers"
    )
    check("not passed bare", failed, bare)

    here = {name for file in serving for name in tests.of_file[file]}
    known = (bare & here) | KNOWN["behind the layer"].keys()
    calling = set()
    for side, title in BEHIND_THE_LAYER.items():
        seen, failed = tests.not_passed(side, serving, known)
        counted = sum(seen.values(), Counter())
        print(
            f"{title}: {of_serving} tests, {len(failed)} not passed; {counted['wrapped']} handlers wrapped,"
            f" {counted['called']} calls, {counted['replayed']} replays"
        )
        check(f"not passed {title}", failed, known)
        bypassed = [file for file in serving if not seen[file]["wrapped"] or seen[file]["bare"]]
        wrong.extend(f"served bare, and not {title}: {file}" for file in bypassed)
        if side == "replays" and not counted["replayed"]:
            wrong.append("nothing was replayed")
        calling.update(file for file in serving if seen[file]["called"])

    runs = tests.on("broken", sorted(calling))
    noticed = {file for file, run in runs.items() if tests.of_file[file] - run.passed - known}
    failing = sum(len(tests.of_file[file] - run.passed - known) for file, run in runs.items())
    print(
        f"a planted break instead of the layer: {failing} tests not passed, in {len(noticed)} of {len(calling)} files"
        " with calls"
    )
    unnoticed = dict.fromkeys(calling - noticed, "")
    check("without notice of a planted break", unnoticed, KNOWN["planted break not noticed"].keys())
    return of_serving, wrong


def main():
    program = built()
    version, sources = rmcp()
    locked = re.search(r'name = "rmcp"\nversion = "(.+)"', (ROOT / "Cargo.lock").read_text()).group(1)
    if version != locked:
        sys.exit(
            f"tests/rmcp/Cargo.lock has rmcp {version}, and Cargo.lock has {locked}:"
            f" cargo update --manifest-path tests/rmcp/Cargo.toml -p rmcp --precise {locked}"
        )
    print(f"the tests of rmcp {version}")
    with tempfile.TemporaryDirectory(prefix="rmcp.") as directory:
        # A copy, because tests write beside the files that they read.
        shutil.copytree(sources / "tests", Path(directory) / "tests")
        count, wrong = compare(Tests(program, directory))
    for each in wrong:
        print(textwrap.indent(each, "  "))
    compared = count * len(BEHIND_THE_LAYER)
    print(f"test result: {max(compared - len(wrong), 0)} passed; {len(wrong)} failed; 0 ignored")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
