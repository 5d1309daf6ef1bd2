"""The command line, run in this process where no stations are needed, and as a real command where they are."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from host.cli.failure import run_app
from host.fleet.state import cache_root

COMMAND_TIMEOUT_S = 90


class Ended(NamedTuple):
    """How a command ended: exit code, what it answered, what it said about it."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error line, after checking that it is the only one, nothing else is on stdout, and no traceback."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        told = f"error: {json.loads(self.out)['error']['message']}" if self.out else lines[0]  # with --json
        assert told == lines[0]
        return lines[0]


@pytest.fixture(scope="session")
def cli_home(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A cache folder that holds one model, `tiny`, and shares the user's compiled kernels."""
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(tiny_model, home / "models" / "tiny")
    compiled = cache_root(os.environ) / "jit"
    compiled.mkdir(parents=True, exist_ok=True)
    (home / "jit").symlink_to(compiled)
    return home


@pytest.fixture
def home(cli_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as this process' own cache folder."""
    monkeypatch.setenv("AEONFLOW_HOME", str(cli_home))
    monkeypatch.delenv("AEONFLOW_TOKEN", raising=False)
    monkeypatch.delenv("AEONFLOW_DEBUG", raising=False)
    return cli_home


@pytest.fixture
def cli(home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run a command in this process, with an empty stdin."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))

    def run(*arguments: str) -> Ended:
        code = run_app(arguments)
        out, err = capfd.readouterr()
        return Ended(code, out, err)

    return run


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "host.cli", *arguments]


@pytest.fixture
def aeonflow(home: Path) -> Callable[..., Ended]:
    """Run a command as a process of its own; `stdin` is text, or bytes as they are."""

    def run(*arguments: str, stdin: str | bytes = "", **environ: str) -> Ended:
        done = subprocess.run(
            command(*arguments),
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
            env={**os.environ, **environ},
        )
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def started(home: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a command with pipes; whatever still runs at the end of the test is killed.

    Ctrl-C works in it even where the tests themselves were started with SIGINT ignored, as by `make test &`.
    """
    children: list[subprocess.Popen[bytes]] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        child = subprocess.Popen(command(*arguments), stdin=pipe, stdout=pipe, stderr=pipe)
        children.append(child)
        return child

    yield start
    signal.signal(signal.SIGINT, before)
    for child in children:
        child.kill()
        child.communicate()
