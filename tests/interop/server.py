"""The server under test, and what it has done."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

# Long enough for a busy machine. Nothing waits this long unless it fails.
PATIENCE = 30


def until(holds, what):
    """Waits until `holds()`, for at most `PATIENCE` seconds."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.01)


class Payments:
    """The example `payments` on a SQLite file of its own. It outlives its processes."""

    def __init__(self, program, directory):
        self.program = str(program)
        self.directory = Path(directory)
        self.database = self.directory / "payments.db"
        self.ledger = self.directory / "ledger"
        self.pids = self.directory / "pids"
        self._served = []

    def command(self, *flags):
        """The command that a client starts for stdio. It leaves the process's id behind."""
        script = 'echo $$ >> "$0"; exec "$@"'
        return ["/bin/sh", "-c", script, str(self.pids), self.program, *self._flags(flags)]

    def serve(self, *flags):
        """Serves HTTP, and returns the URL."""
        arguments = [self.program, *self._flags(flags), "--http", "127.0.0.1:0"]
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._served.append(process)
        with self.pids.open("a") as pids:
            pids.write(f"{process.pid}\n")
        said = process.stderr.readline()
        if not (found := re.search(r"http://\S+", said)):
            raise AssertionError(f"the server did not start: {said!r}")
        return found.group()

    def _flags(self, flags):
        return ["--store", f"sqlite://{self.database}", "--ledger", str(self.ledger), *flags]

    def kill(self):
        """SIGKILL to each process that was started so far. They have no chance to clean up."""
        for pid in self.pids.read_text().split() if self.pids.exists() else []:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.pids.unlink(missing_ok=True)
        for process in self._served:
            process.wait()
        self._served.clear()

    def executions(self):
        """How often a tool ran, whether its effect was committed or not."""
        return len(self.ledger.read_text().splitlines()) if self.ledger.exists() else 0

    def effects(self):
        """The rows of charges that are committed."""
        return self.rows("charges")

    def rows(self, table):
        """The rows of a table that are committed."""
        if not self.database.exists():
            return 0
        try:
            with sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=5) as connection:
                return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        except sqlite3.OperationalError as error:
            # Before the server has made its tables.
            print(f"not readable yet: {error}", file=sys.stderr) if "no such table" not in str(error) else None
            return 0
