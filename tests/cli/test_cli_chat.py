"""`aeonflow chat` without a terminal: each line a message, history and KV kept, Ctrl-C stops the answer only."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable

from .conftest import Ended

Run = Callable[..., Ended]
Start = Callable[..., "subprocess.Popen[bytes]"]

TINY = ("--model", "tiny")


def test_each_line_is_answered_and_the_kv_is_kept(aeonflow: Run) -> None:
    ended = aeonflow("chat", *TINY, "--max-tokens", "6", stdin="Hello there\nAnd again\n")
    assert ended.code == 0, ended.err
    summaries = re.findall(r"prompt (\d+)(?: \((\d+) from cache\))?", ended.err)
    assert len(summaries) == 2
    first, second = summaries
    assert first[1] == ""
    assert int(second[1]) >= int(first[0])  # the whole first turn was not computed again
    assert ended.out.count("\n") >= 2


def test_commands_are_obeyed_and_unknown_ones_named(aeonflow: Run) -> None:
    lines = "/help\nHello\n/reset\nHello\n/fly\n\n/quit\nnever read\n"
    ended = aeonflow("chat", *TINY, "--max-tokens", "6", stdin=lines)
    assert ended.code == 0
    assert "/reset  forget the conversation" in ended.err
    assert "unknown command /fly" in ended.err
    assert "from cache" not in ended.err
    answers = re.findall(r"^6 tokens|^\d tokens", ended.err, re.M)
    assert len(answers) == 2
    half = len(ended.out) // 2
    assert ended.out[:half] == ended.out[half:]  # the same question after a reset has the same answer


def test_a_line_that_is_not_utf_8_is_named(aeonflow: Run) -> None:
    ended = aeonflow("chat", *TINY, "--max-tokens", "2", stdin=b"/help\nH\xe9llo\n")
    assert ended.code == 2
    assert ended.err.splitlines()[-1] == "error: line 2 of stdin is not UTF-8 text: byte 0xe9 at offset 1 of 6"


def test_a_system_message_changes_the_prompt(aeonflow: Run) -> None:
    plain = aeonflow("chat", *TINY, "--max-tokens", "2", stdin="Hello\n").err
    system = aeonflow("chat", *TINY, "--max-tokens", "2", "--system", "You are terse.", stdin="Hello\n").err
    counts = [int(re.findall(r"prompt (\d+)", err)[0]) for err in (plain, system)]
    assert counts[0] != counts[1]


def test_ctrl_c_stops_the_answer_and_not_the_program(started: Start) -> None:
    child = started("chat", *TINY, "--plan", "layers:2", "--ignore-eos", "--max-tokens", "3000")
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdin.write(b"Hello\n")
    child.stdin.flush()
    assert child.stdout.read(1)
    child.send_signal(signal.SIGINT)
    while b"cancelled" not in (line := child.stderr.readline()):
        assert line, "ended without a summary"
    child.stdin.write(b"/reset\n/quit\n")
    child.stdin.flush()
    out, err = child.communicate(timeout=30)
    assert child.returncode == 0
    assert b"the conversation is forgotten" in err
    assert b"Traceback" not in err
    assert out != b""
