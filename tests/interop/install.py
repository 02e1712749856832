"""Installs the pinned clients, each where it disturbs no other."""

import hashlib
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from client import HERE

UV = "uv==0.13.9"

# Several clients are installed at once, and uv, which they share, only by the first.
_installs_uv = threading.Lock()


class NotInstalled(Exception):
    """The registry could not be reached, or did not have what the lock file names."""


def run(*command, cwd=None):
    try:
        done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NotInstalled(f"{command[0]} is not installed") from error
    except OSError as error:
        raise NotInstalled(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()[-5:]
        raise NotInstalled("\n".join([f"{' '.join(map(str, command))}", *said]))


def install(library, home):
    """Installs `library` under `home`, unless it is there, and returns its directory."""
    source, target = HERE / "clients" / library.folder, home / library.folder
    lock = source / ("requirements.txt" if library.is_python else "package-lock.json")
    stamp, wanted = target / "installed", hashlib.sha256(lock.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        if library.is_python:
            _install_python(lock, home, target)
        else:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(source / name, target)
            run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=target)
        stamp.write_text(wanted)
    if not library.is_python:
        # Modules are looked for beside the file that imports them.
        shutil.copy(HERE / "clients/common/driver.mjs", target / "driver.mjs")
        own = HERE / "clients" / (library.source or f"{library.folder}/driver.mjs")
        shutil.copy(own, target / "main.mjs")
    return target


def _install_python(lock, home, target):
    uv = home / "uv/bin/uv"
    with _installs_uv:
        if not uv.exists():
            run(sys.executable, "-m", "venv", home / "uv")
            run(home / "uv/bin/pip", "install", "--quiet", UV)
    run(uv, "venv", "--quiet", "--python", sys.executable, target / "venv")
    python = target / "venv/bin/python"
    run(uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", lock)
