"""The multi-machine how-to, played through in two network namespaces joined by a veth pair."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "two_machines.sh"
COMMAND_TIMEOUT_S = 60
MakeCertificate = Callable[..., tuple[Path, Path]]
ADDRESSES = ("10.213.77.1", "10.213.77.2")


class Machines(NamedTuple):
    """Names of two network namespaces that reach each other at ADDRESSES, and nothing else."""

    desk: str
    shelf: str


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=COMMAND_TIMEOUT_S)


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the ip command")
    tag = secrets.token_hex(3)
    names = Machines(f"aeon-{tag}-a", f"aeon-{tag}-b")
    with ExitStack() as stack:
        try:
            for name in names:
                ip("netns", "add", name)
                stack.callback(ip, "netns", "del", name)
            ends = (f"ve{tag}a", f"ve{tag}b")
            ip("link", "add", ends[0], "netns", names.desk, "type", "veth", "peer", ends[1], "netns", names.shelf)
            for name, end, address in zip(names, ends, ADDRESSES, strict=True):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
                ip("-n", name, "link", "set", end, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.decode().strip()}")
        yield names


def command(namespace: str, *words: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, str(SCRIPT), *words]


def environment(model: Path, folder: Path, **more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"MODEL": str(model), "TOKEN_FILE": str(folder / "fleet.token"), "KERNELS": "reference", "PATH": path}
    return os.environ | own | more


@contextmanager
def station(namespace: str, name: str, roles: str, address: str, env: dict[str, str]) -> Iterator[str]:
    """A station as the how-to starts it, on a free port; its address once it is ready."""
    words = command(namespace, "station", name, roles, f"{address}:0")
    with subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
            try:
                process.wait(COMMAND_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def ask(namespace: str, urls: list[str], env: dict[str, str]) -> dict[str, Any]:
    options = ("--json", "--max-tokens", "8")
    words = command(namespace, "ask", ",".join(urls), "Hello! Who are you?", *options)
    done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_TIMEOUT_S)
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def answer_alone(env: dict[str, str]) -> dict[str, Any]:
    words = ["aeonflow", "run", "--model", env["MODEL"], "--kernels", "reference", "--json", "--max-tokens", "8"]
    done = subprocess.run(
        [*words, "--", "Hello! Who are you?"],
        env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def make_secret(machines: Machines, env: dict[str, str]) -> None:
    subprocess.run(command(machines.desk, "token"), env=env, check=True, capture_output=True, timeout=COMMAND_TIMEOUT_S)


def test_two_machines_carry_one_model_and_answer_as_one(machines: Machines, tiny_model: Path, tmp_path: Path) -> None:
    env = environment(tiny_model, tmp_path)
    make_secret(machines, env)
    assert (tmp_path / "fleet.token").stat().st_mode & 0o077 == 0
    with (
        station(machines.desk, "desk", "embed,block:0-1", ADDRESSES[0], env) as desk,
        station(machines.shelf, "shelf", "block:2-3,head", ADDRESSES[1], env) as shelf,
    ):
        assert desk.startswith(f"ws://{ADDRESSES[0]}:")
        answer = ask(machines.shelf, [shelf, desk], env)
        assert answer["hops_per_token"] == 3
        assert answer["token_ids"] == answer_alone(env)["token_ids"]


def test_the_host_may_be_a_machine_without_model_and_links_may_be_encrypted(
    machines: Machines, tiny_model: Path, tmp_path: Path, certificate: MakeCertificate
) -> None:
    cert, key = certificate(*ADDRESSES)
    env = environment(tiny_model, tmp_path, TLS_CERT=str(cert), TLS_KEY=str(key), TLS_CA=str(cert))
    make_secret(machines, env)
    with (
        station(machines.desk, "front", "embed,block:0-1", ADDRESSES[0], env) as front,
        station(machines.desk, "back", "block:2-3,head", ADDRESSES[0], env) as back,
    ):
        assert front.startswith(f"wss://{ADDRESSES[0]}:")
        answer = ask(machines.shelf, [front, back], env | {"MODEL": "none"})
        assert answer["finish_reason"] in ("length", "stop")
        assert answer["usage"]["completion_tokens"] >= 1


def test_without_a_certificate_and_without_insecure_a_station_stays_on_loopback(
    machines: Machines, tiny_model: Path, tmp_path: Path
) -> None:
    env = environment(tiny_model, tmp_path)
    make_secret(machines, env)
    words = ["station", "--model", str(tiny_model), "--kernels", "reference", "--token-file", env["TOKEN_FILE"]]
    refused = subprocess.run(
        ["ip", "netns", "exec", machines.desk, "aeonflow", *words, "--listen", f"{ADDRESSES[0]}:0"],
        env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_TIMEOUT_S,
    )  # fmt: skip
    assert refused.returncode != 0
    assert b"--insecure" in refused.stdout + refused.stderr


def test_another_secret_is_refused_in_one_line(machines: Machines, tiny_model: Path, tmp_path: Path) -> None:
    env = environment(tiny_model, tmp_path)
    make_secret(machines, env)
    (tmp_path / "wrong.token").write_text("0" * 43)
    with station(machines.desk, "all", "embed,block:0-3,head", ADDRESSES[0], env) as url:
        asked = subprocess.run(
            command(machines.shelf, "ask", url, "Hello"),
            env=env | {"TOKEN_FILE": str(tmp_path / "wrong.token")},
            stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip
    assert asked.returncode != 0
    assert b"Traceback" not in asked.stderr
    assert b"401" in asked.stderr or b"token" in asked.stderr
