"""`aeonflow run` as a command: what goes to stdout, what to stderr, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from .conftest import COMMAND_TIMEOUT_S, Ended, command

Run = Callable[..., Ended]
Start = Callable[..., "subprocess.Popen[bytes]"]

TINY = ("--model", "tiny")
LONG = ("--ignore-eos", "--max-tokens", "4000")

KEYS = {
    *("text", "token_ids", "prompt_ids", "finish_reason", "usage", "timings", "plan", "route", "kernels", "transport"),
    *("exactness", "hops_per_token", "bytes_per_token", "kv", "speculation", "pair_x"),
}


def stations_of(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if "stations" in child.cmdline()]


def all_gone(processes: list[psutil.Process]) -> bool:
    return psutil.wait_procs(processes, timeout=20)[1] == []


def test_json_is_one_object_with_every_field_and_counts_that_agree(aeonflow: Run) -> None:
    ended = aeonflow("run", *TINY, "--max-tokens", "5", "--ignore-eos", "--json", "Hello")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found.keys() == KEYS
    assert found["finish_reason"] == "length"
    assert len(found["token_ids"]) == found["usage"]["completion_tokens"] == 5
    assert len(found["prompt_ids"]) == found["usage"]["prompt_tokens"] > 0
    assert found["timings"].keys() == {"ttft_s", "prefill_tok_s", "decode_tok_s", "total_s"}
    assert (found["plan"], found["transport"], found["hops_per_token"]) == ("solo", "memory", 0)
    assert found["exactness"].keys() == {"cut", "model"}


def test_the_text_and_one_newline_go_to_stdout_and_nothing_else_does(aeonflow: Run, cli: Run) -> None:
    options = (*TINY, "--max-tokens", "20", "--ignore-eos", "Hello")
    plain, as_json = aeonflow("run", *options), cli("run", *options, "--json")
    assert plain.code == 0, plain.err
    text = json.loads(as_json.out)["text"]
    assert text != ""
    assert plain.out == text + "\n"
    assert plain.err.count("\n") == 2  # ready, and the summary
    assert "20 tokens (length)" in plain.err


def test_the_summary_begins_a_line_where_stdout_and_stderr_are_one_file(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as file:
        arguments = command("run", *TINY, "--max-tokens", "6", "--ignore-eos", "Hello")
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=COMMAND_TIMEOUT_S)
    assert done.returncode == 0
    *told, last = path.read_text().splitlines()
    assert told[0].startswith("solo is ready after ")
    assert last.startswith("6 tokens (length) in ")


def test_sampling_options_that_greedy_decoding_ignores_are_named(cli: Run) -> None:
    ended = cli("run", *TINY, "--max-tokens", "2", "--top-p", "0.5", "--seed", "0", "Hello")
    assert ended.code == 0
    assert "warning: --top-p, --seed: without effect at temperature 0" in ended.err
    sampled = cli("run", *TINY, "--max-tokens", "2", "--top-p", "0.5", "--temperature", "1", "Hello")
    assert "warning" not in sampled.err


def test_the_prompt_can_come_from_stdin(aeonflow: Run) -> None:
    options = (*TINY, "--max-tokens", "3", "--json")
    given, dash, silent = (
        json.loads(aeonflow("run", *options, *more, stdin=stdin).out)["prompt_ids"]
        for more, stdin in ((("Hé",), ""), (("-",), "Hé"), ((), "Hé"))
    )
    assert given == dash == silent


def test_a_prompt_on_stdin_that_is_not_utf_8_is_refused_where_it_goes_wrong(aeonflow: Run) -> None:
    ended = aeonflow("run", *TINY, "-", stdin=b"H\xe9llo")
    assert (ended.code, ended.error) == (2, "error: stdin is not UTF-8 text: byte 0xe9 at offset 1 of 5")


def test_a_stdin_without_end_is_refused(aeonflow: Run) -> None:
    ended = aeonflow("run", *TINY, stdin=b"y\n" * (8 << 20) + b"y")
    assert (ended.code, "stdin has more than 16777216 bytes" in ended.error) == (2, True)


def test_a_fleet_gives_what_solo_gives_and_leaves_no_process(aeonflow: Run) -> None:
    options = (*TINY, "--max-tokens", "24", "--ignore-eos", "--logits-hash", "--json", "Hello")
    solo, *others = (
        json.loads(aeonflow("run", *more, *options).out)
        for more in ((), ("--plan", "trisplit"), ("--plan", "trisplit", "--route", "relay", "--coalesce", "off"))
    )
    assert [other["hops_per_token"] for other in others] == [15, 28]
    for other in others:
        assert other["token_ids"] == solo["token_ids"]
        assert other["logits_hash"] == solo["logits_hash"]


def test_stop_strings_and_raw_prompts_are_passed_on(cli: Run) -> None:
    whole = json.loads(cli("run", *TINY, "--raw", "--max-tokens", "40", "--ignore-eos", "--json", "abc").out)
    stop = whole["text"][5:8]
    cut = json.loads(
        cli("run", *TINY, "--raw", "--max-tokens", "40", "--ignore-eos", "--stop", stop, "--json", "abc").out
    )
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]


def test_ctrl_c_ends_with_130_and_the_answer_so_far(started: Start) -> None:
    child = started("run", *TINY, "--plan", "trisplit", *LONG, "--json", "Hello")
    assert child.stderr is not None
    assert b"is ready" in child.stderr.readline()
    stations = stations_of(child.pid)
    assert len(stations) == 4
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert json.loads(out)["finish_reason"] == "cancelled"
    assert err.endswith(b"interrupted\n")
    assert b"Traceback" not in err
    assert all_gone(stations)


def test_sigterm_drains_and_removes_the_secret(started: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    child = started("run", *TINY, "--plan", "layers:2", *LONG, "Hello")
    assert child.stdout is not None
    assert child.stdout.read(1)
    stations = stations_of(child.pid)
    assert len(list(tmp_path.glob("aeonflow-*/token"))) == 1
    child.terminate()
    _, err = child.communicate(timeout=30)
    assert child.returncode == 143
    assert b"Traceback" not in err
    assert all_gone(stations)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_command_leaves_no_orphan(started: Start) -> None:
    child = started("run", *TINY, "--plan", "trisplit", *LONG, "Hello")
    assert child.stdout is not None
    assert child.stdout.read(1)
    stations = stations_of(child.pid)
    assert len(stations) == 4
    child.kill()
    child.communicate()
    assert all_gone(stations)


def test_a_reader_that_leaves_stops_the_generation_quietly(started: Start) -> None:
    child = started("run", *TINY, "--plan", "layers:2", *LONG, "Hello")
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.read(1)
    stations = stations_of(child.pid)
    child.stdout.close()
    err = child.stderr.read()
    assert child.wait(30) == 141
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err
    assert all_gone(stations)


def test_a_prompt_beyond_the_context_names_both_numbers(aeonflow: Run) -> None:
    ended = aeonflow("run", *TINY, "-", stdin="a b c d " * 4000)
    assert ended.code == 2
    assert "tokens, the context of the model holds 4096" in ended.error


def test_a_port_in_use_is_named_and_nothing_is_left(aeonflow: Run, tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        plan = tmp_path / "plan.toml"
        plan.write_text(f'[[station]]\nname = "all"\nroles = "embed,block:0-3,head"\nhost = "127.0.0.1:{port}"\n')
        ended = aeonflow("run", *TINY, "--plan", str(plan), "hi")
    assert ended.code == 1
    assert "station all did not start" in ended.error
    assert str(port) in ended.error
    assert not [c for c in psutil.Process(os.getpid()).children() if "stations" in c.cmdline()]
