"""A client library: where its driver is, and how it is spoken to."""

import itertools
import json
import os
import subprocess
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


class Failed(Exception):
    """What the library reported instead of a result."""

    def __init__(self, error):
        super().__init__(error["message"])
        self.type, self.message = error["type"], error["message"]
        self.code, self.data = error.get("code"), error.get("data")


@dataclass(frozen=True)
class Library:
    """A pinned client library in a folder of `clients/`."""

    folder: str
    title: str
    # The file with the snippet that sets a key, if it is not the driver in the folder.
    source: str = ""
    # Where the library can put a key: in `_meta`, or only in an argument.
    key_in: str = "_meta"
    revisions: tuple = ("2025-11-25",)
    # The driver as a built program, instead of one that has to be installed.
    program: str = ""
    # What the library has beyond calls, each a scenario's name.
    can: frozenset = frozenset()

    @property
    def is_python(self):
        return (HERE / "clients" / self.folder / "requirements.in").exists()

    @property
    def language(self):
        return "rust" if self.program else "python" if self.is_python else "js"

    def snippet(self):
        """How a key is set: the lines of the driver between its marks, which the scenarios run."""
        source = HERE / "clients" / (self.source or f"{self.folder}/driver.{'py' if self.is_python else 'mjs'}")
        lines = source.read_text().splitlines()
        marks = [line.strip().lstrip("/#").strip() for line in lines]
        kept = lines[marks.index("key") + 1 : marks.index("end")]
        indent = min(len(line) - len(line.lstrip()) for line in kept)
        return "\n".join(line[indent:] for line in kept)


class Driver:
    """A running driver. Threads may share it."""

    def __init__(self, library, installed, logs):
        if library.program:
            command, environment = [installed / library.program], dict(os.environ)
        elif library.is_python:
            command = [installed / "venv/bin/python", "-P", HERE / "clients" / library.folder / "driver.py"]
            environment = {**os.environ, "PYTHONPATH": str(HERE / "clients/common")}
        else:
            command, environment = ["node", installed / "main.mjs"], dict(os.environ)
        log = open(logs / f"{library.folder}.log", "w")  # noqa: SIM115 - it is the driver's
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        self._ids = itertools.count(1)
        self._waiting = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self._process.stdout:
            answer = json.loads(line)
            future = self._waiting.pop(answer["id"])
            if "ok" in answer:
                future.set_result(answer["ok"])
            else:
                future.set_exception(Failed(answer["error"]))
        for future in list(self._waiting.values()):
            future.set_exception(AssertionError("the driver has ended; see its log"))

    def start(self, **command):
        """Gives a command. The answer is a future."""
        with self._lock:
            identifier, future = next(self._ids), Future()
            self._waiting[identifier] = future
            self._process.stdin.write(json.dumps({"id": identifier, **command}) + "\n")
            self._process.stdin.flush()
        return future

    def ask(self, **command):
        return self.start(**command).result(timeout=90)

    def end(self):
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
