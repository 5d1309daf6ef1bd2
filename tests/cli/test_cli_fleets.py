"""`aeonflow up`, `down`, `status`, `logs`, `doctor`: fleets that outlive a command."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from .conftest import Ended
from .test_cli_run import Start, all_gone

Run = Callable[..., Ended]

TINY = ("--model", "tiny")


@contextmanager
def fleet_up(aeonflow: Run, home: Path, name: str, *options: str) -> Iterator[dict[str, Any]]:
    """A detached fleet; gives its state file's content. Whatever happens, its processes are gone afterwards."""
    ended = aeonflow("up", "--name", name, "--detach", *TINY, *options)
    assert ended.code == 0, ended.err
    assert ended.out == ""
    state = json.loads((home / "fleets" / f"{name}.json").read_text())
    processes = [psutil.Process(s["pid"]) for s in state["stations"]] + [psutil.Process(state["supervisor_pid"])]
    try:
        yield state
    finally:
        if psutil.pid_exists(state["supervisor_pid"]):
            os.kill(state["supervisor_pid"], signal.SIGKILL)
        assert all_gone(processes)


def test_up_status_run_logs_and_down(aeonflow: Run, cli: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet_up(aeonflow, home, "day", "--plan", "trisplit") as state:
        assert stat.S_IMODE((home / "fleets" / "day.json").stat().st_mode) == 0o600
        assert state["is_up"] is True
        assert [s["state"] for s in state["stations"]] == ["ready"] * 4
        command_lines = [" ".join(psutil.Process(s["pid"]).cmdline()) for s in state["stations"]]
        assert not any(state["token"] in line for line in command_lines)

        status = json.loads(cli("status", "--fleet", "day", "--json").out)
        assert status["ready"] is True
        assert [(s["name"], s["state"]) for s in status["stations"]] == [
            *(("attn", "ready"), ("gate_up", "ready"), ("down", "ready"), ("ends", "ready"))
        ]
        assert {"roles", "pid", "url", "restarts"} <= status["stations"][0].keys()
        assert status["frames_per_message"] >= 1.0
        assert {"seeds_sent", "seeds_received"} <= status.keys()

        options = ("--max-tokens", "5", "--ignore-eos", "--json", "Hello")
        by_name = json.loads(aeonflow("run", "--fleet", "day", *options).out)
        urls = ",".join(s["url"] for s in state["stations"])
        monkeypatch.setenv("AEONFLOW_TOKEN", state["token"])
        by_address = json.loads(cli("run", "--fleet", urls, *options).out)
        solo = json.loads(aeonflow("run", *TINY, *options).out)
        assert by_name["token_ids"] == by_address["token_ids"] == solo["token_ids"]
        assert by_name["hops_per_token"] == 15
        assert (by_name["plan"], by_address["plan"]) == ("trisplit", "connected")

        again = cli("up", "--name", "day", "--detach", *TINY, "--plan", "solo")
        assert (again.code, again.error) == (
            *(1, "error: fleet 'day' runs already; stop it with: aeonflow down --fleet day"),
        )
        log = json.loads(cli("logs", "supervisor", "--fleet", "day", "--lines", "1", "--json").out)
        assert (log["station"], len(log["lines"])) == ("supervisor", 1)
        assert cli("logs", "attn", "--fleet", "day") == Ended(0, "", "attn has not written anything\n")
        assert (
            "has no log of 'x' (there: attn, down, ends, gate_up, supervisor)"
            in cli("logs", "x", "--fleet", "day").error
        )

        monkeypatch.setenv("AEONFLOW_TOKEN", "wrong")
        wrong = cli("run", "--fleet", urls, *options)
        assert wrong.code == 1
        assert "401" in json.loads(wrong.out)["error"]["message"]

        down, told = aeonflow("down", "--fleet", "day", "--json"), "fleet day is down: 4 stations stopped"
        assert (down.code, down.err) == (0, f"{told}\n")
        assert json.loads(down.out) == {"name": "day", "down": True, "told": told}
        assert not (home / "fleets" / "day.json").exists()
        assert not (home / "fleets" / "day" / "token").exists()


@pytest.mark.slow
def test_two_fleets_live_side_by_side_and_a_killed_station_comes_back(aeonflow: Run, home: Path) -> None:
    with fleet_up(aeonflow, home, "a", "--plan", "layers:2") as a, fleet_up(aeonflow, home, "b", "--plan", "solo"):
        several = aeonflow("status")
        assert several.code == 2
        assert "several fleets run here (a, b): name one with --fleet" in several.error
        os.kill(a["stations"][0]["pid"], signal.SIGKILL)
        for _ in range(100):
            ended = aeonflow("status", "--fleet", "a", "--json")
            status = json.loads(ended.out)
            if status["ready"] and status["stations"][0]["restarts"] == 1:
                break
        assert status["ready"], status
        assert status["stations"][0]["exit_status"] == -9
        assert status["stations"][0]["url"] == a["stations"][0]["url"]
        assert status["stations"][0]["pid"] != a["stations"][0]["pid"]
        history = aeonflow("logs", "supervisor", "--fleet", "a").out
        back = f"station layers-0 is ready at {a['stations'][0]['url']}; its last process: killed by SIGKILL\n"
        assert history.endswith(back)
        assert aeonflow("run", "--fleet", "a", "--max-tokens", "2", "hi").code == 0
        doctor = aeonflow("doctor", "--json")
        checks = {check["check"]: check for check in json.loads(doctor.out)["checks"]}
        assert {"python", "cores", "memory", "cache", "models", "ports", "fleet a", "fleet a: chain"} <= checks.keys()
        assert checks["fleet b: chain"]["verdict"] == "ok"
        assert re.search(r"answers in \d", checks["fleet a: layers-0"]["found"])
        assert aeonflow("down", "--fleet", "a").code == 0
        assert aeonflow("down").err == "fleet b is down: 1 station stopped\n"


def test_the_state_of_a_dead_supervisor_is_recognised_and_cleared(aeonflow: Run, cli: Run, home: Path) -> None:
    with fleet_up(aeonflow, home, "s", "--plan", "layers:2") as state:
        stations = [psutil.Process(s["pid"]) for s in state["stations"]]
        os.kill(stations[0].pid, signal.SIGSTOP)  # it cannot see its stdin close
        os.kill(state["supervisor_pid"], signal.SIGKILL)
        assert all_gone(stations[1:])
        stale = cli("status", "--fleet", "s")
        assert stale.code == 1
        assert "fleet 's' is not running: its supervisor" in stale.error
        down = aeonflow("down", "--fleet", "s")
        assert down.code == 0
        assert "was not running (its supervisor had died)" in down.err
        assert all_gone(stations)
        assert cli("down", "--fleet", "s").code == 2


def test_a_fleet_in_the_foreground_stops_at_ctrl_c(started: Start, aeonflow: Run, home: Path) -> None:
    child = started("up", "--name", "fg", "--plan", "layers:2", *TINY)
    assert child.stderr is not None
    while b"is up" not in (line := child.stderr.readline()):
        assert line, "ended before it was up"
    assert aeonflow("status", "--fleet", "fg").code == 0
    stations = psutil.Process(child.pid).children()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 0
    assert err.endswith(b"fleet fg is down\n")
    assert all_gone(stations)
    assert not (home / "fleets" / "fg.json").exists()


def test_a_detached_start_that_fails_says_why_and_leaves_nothing(aeonflow: Run, home: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[[station]]\nname = "all"\nroles = "embed,block:0-3,head"\nhost = "192.0.2.1"\n')
    ended = aeonflow("up", "--name", "bad", "--detach", *TINY, "--plan", str(plan))
    assert ended.code == 1
    assert "station all did not start" in ended.error
    assert not (home / "fleets" / "bad.json").exists()


def test_a_station_is_started_by_the_station_package(aeonflow: Run) -> None:
    ended = aeonflow("station", "--help")
    assert ended.code == 0
    assert "--exit-with-parent" in ended.out


def test_a_station_without_a_secret_says_so_in_one_line(aeonflow: Run) -> None:
    ended = aeonflow("station", "--model", "tiny", "--listen", "127.0.0.1:0")
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert "no token: give --token-file or set AEONFLOW_TOKEN" in ended.err
