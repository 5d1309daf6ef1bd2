"""Every wrong command: one line with the names and numbers, the right exit code, no traceback, nothing on stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Ended

RunCli = Callable[..., Ended]

USAGE = [
    ("run --bogus hi", "No such option: --bogus"),
    ("run --plan", "requires an argument (see: aeonflow run --help)"),
    ("bench wire --runs", "requires an argument (see: aeonflow bench wire --help)"),
    ("fly", "(see: aeonflow --help)"),
    ("fly", "No such command 'fly'"),
    ("run --temperature -1 hi", "temperature -1.0: a number from 0 to 100"),
    ("run --temperature hot hi", "Invalid value for '--temperature'"),
    ("run --top-p 0 hi", "top_p 0.0: a number above 0 and at most 1"),
    ("run --top-p 1.5 hi", "top_p 1.5: a number from 0 to 1"),
    ("run --top-k -1 hi", "top_k -1: a whole number from 0"),
    ("run --min-p 2 hi", "min_p 2.0: a number from 0 to 1"),
    ("run --max-tokens 0 hi", "max_tokens 0: a whole number of at least 1"),
    ("run --prefill-chunk 0 hi", "prefill_chunk 0: a whole number of at least 1"),
    ("run --temperature hot hi", "found 'hot'"),
    ("run --threads 0 hi", "'--threads': Input should be greater than or equal to 1, found '0'"),
    ("run --link-delay-ms -1 hi", "'--link-delay-ms': Input should be greater than or equal to 0, found '-1'"),
    ("run --link-delay-ms inf hi", "less than or equal to 60000, found 'inf'"),
    ("run --kv-sink 4 hi", "kv_sink=4 without kv_max: nothing leaves"),
    ("run --approximate hi", "approximate without o1: there is nothing that it would permit"),
    ("run --tls-ca ca.pem hi", "--tls-ca goes with --fleet URL"),
    ("run --fleet ws://127.0.0.1:9 --tls-ca ca.pem hi", "--tls-ca goes with wss:// addresses"),
    ("run --fleet f --tls-ca ca.pem hi", "--tls-ca goes with addresses"),
    ("run --model tiny --transport picows hi", "transport 'picows': plan solo is one process"),
    ("run --transport carrier-pigeon hi", "Invalid value for '--transport': 'carrier-pigeon' is not one of"),
    ("run --route detour hi", "'detour' is not one of"),
    ("run --kernels magic hi", "'magic' is not one of"),
    ("run", "the prompt is empty"),
    ("run -", "the prompt is empty"),
    ("run --fleet f --plan solo --threads 2 hi", "--plan, --threads and --fleet contradict each other"),
    ("run --fleet f --model tiny hi", "--model and --fleet contradict each other"),
    ("run --token-file t hi", "--token-file goes with --fleet URL"),
    ("run --fleet ws://127.0.0.1:9 hi", "needs its secret: --token-file FILE, or AEONFLOW_TOKEN"),
    ("run --fleet http://127.0.0.1:9 hi", "begins with ws:// or wss://"),
    ("chat --top-p 7", "top_p 7.0"),
    ("chat --speculate often", "speculate 'often': allowed is off, lookup, model:NAME, auto"),
    ("run --speculate pairz hi", "early logits are right too rarely to beat prompt lookup"),
    ("eval --speculate lookup a.txt", "its tokens are given, none is guessed"),
    ("down --fleet ws://127.0.0.1:9", "stations at addresses were not started here"),
    ("logs attn --fleet ws://127.0.0.1:9", "stations at addresses were not started here"),
    ("chat --kv f16 --kv-exact-recent 9", "contradict each other"),
    ("doctor --token-file t", "--token-file goes with addresses"),
    ("doctor --fleet f --token-file t", "--token-file goes with addresses"),
    ("status --fleet f --token-file t", "--token-file goes with addresses"),
    ("bench decode --kv f16 --threads 2", "--threads, --kv without --plan"),
    ("bench trisplit --model tiny --pair-x live", "live: the model's residual is 'sequential', not ladder or parallel"),
    ("bench wire --link-delay-ms -1", "greater than or equal to 0, found '-1'"),
    ("plan trisplit --model tiny --rtt-ms -1", "greater than or equal to 0, found '-1'"),
    ("plan trisplit --model tiny --rtt-ms inf", "less than or equal to 60000, found 'inf'"),
    ("explain --kv q3", "'q3' is not one of 'f32', 'f16', 'q8', 'q8k', 'q8v', 'q4'"),
    ("explain --kv q4 --kv-max 1000", "kv_max=1000 and kv=q4 contradict each other"),
    ("explain --o1 m=2", "m=2, w=128, sink=4: m is 4 to 1024"),
    ("explain --threads 0", "greater than or equal to 1, found '0'"),
    ("explain --max-tokens 0", "max_tokens 0: a whole number of at least 1"),
    ("explain --temperature -1", "temperature -1.0: a number from 0 to 100"),
    ("explain --prefill-chunk 0", "prefill_chunk 0: a whole number of at least 1"),
    ("explain --speculate soon", "speculate 'soon': allowed is off"),
    ("models --all", "No such option: --all"),
    ("models --json rm tiny", "--json goes behind rm: aeonflow models rm NAME --json"),
    ("up", "Missing option '--plan'"),
    ("up --plan layers:2 --threads 0", "greater than or equal to 1, found '0'"),
    ("run --model nope hi", "(there: tiny); import one with: aeonflow pull"),
    (
        "run --model hf:org/repo hi",
        "model 'hf:org/repo' is not imported yet; import it with: aeonflow pull hf:org/repo",
    ),
    ("explain --plan nonsense", "plan 'nonsense' is neither a preset"),
    ("run --model tiny --plan bogus hi", "plan 'bogus' is neither a preset (solo, layers:N, trisplit"),
    ("run --model tiny --plan layers:9 hi", "processes '9': a number from 1 to 4"),
    ("run --model tiny --plan nowhere.toml hi", "plan file nowhere.toml cannot be read: No such file"),
    ("plan layers:9 --model tiny", "a number from 1 to 4"),
    ("plan trisplit --model nope", "model 'nope' is not in"),
    ("plan trisplit --model tiny --context 5000", "context 5000: the model holds 1 to 4096"),
    ("down --fleet f", "no fleet 'f' was started here (known: none)"),
    ("logs attn --fleet f", "fleet f has no log of 'attn' (there: none)"),
    ("logs ../../x --fleet f", "has no log of"),
    ("status --fleet ../x", "fleet name '../x': letters, digits"),
    ("models rm nope", "model 'nope' is not in"),
    ("models rm ../x", "model name '../x'"),
    ("pull nowhere.gguf", "nowhere.gguf"),
    ("pull synthetic:layers=0", "layers"),
    ("run --fleet ws://127.0.0.1:9 --token-file missing hi", "token file missing: No such file"),
    ("run --model tiny --trace /nowhere/t.json hi", "--trace /nowhere/t.json: there is no folder /nowhere"),
    ("run --model tiny --speculate model:nope hi", "model 'nope' is not in"),
    ("run --model tiny --speculate bogus hi", "allowed is off, lookup, model:NAME, auto"),
    ("run --model tiny --plan trisplit --pair-x live hi", "--approximate runs it all the same"),
    ("run --model tiny --o1 m=8,w=16 hi", "no report shows that it beats sinks and a window"),
    ("eval pyproject.toml --model tiny --context 100000", "context 100000: 64 to 4096 tokens are allowed"),
]

FAILED = [
    ("status", "no fleet runs here; start one with: aeonflow up"),
]


@pytest.mark.parametrize(("line", "said"), USAGE, ids=[line for line, _ in USAGE])
def test_what_cannot_be_meant_is_refused_with_exit_code_2(cli: RunCli, line: str, said: str) -> None:
    ended = cli(*line.split())
    assert ended.code == 2
    assert said in ended.error


@pytest.mark.parametrize(("line", "said"), FAILED, ids=[line for line, _ in FAILED])
def test_what_fails_says_why_with_exit_code_1(cli: RunCli, line: str, said: str) -> None:
    ended = cli(*line.split())
    assert ended.code == 1
    assert said in ended.error


def test_an_empty_prompt_is_refused(cli: RunCli) -> None:
    ended = cli("run", "--model", "tiny", "")
    assert (ended.code, ended.error) == (2, "error: the prompt is empty: at least one character is needed")


def test_an_empty_token_file_is_named(cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("")
    ended = cli("run", "--fleet", "ws://127.0.0.1:9", "--token-file", str(tmp_path / "token"), "hi")
    assert ended.code == 2
    assert "has 0 bytes; 1 to 4096 are expected" in ended.error


def test_with_json_an_error_is_the_one_object_on_stdout_too(cli: RunCli) -> None:
    for line, code in (
        ("status --json", "failed"),
        ("run --json --plan bogus hi", "bad_plan"),
        ("run --json -x", "usage"),
    ):
        ended = cli(*line.split())
        error = json.loads(ended.out)["error"]
        assert error["code"] == code
        assert ended.err == f"error: {error['message']}\n"


def test_a_closed_stdin_is_an_empty_prompt(home: Path) -> None:
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m host.cli run - 0<&-"], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, b"error: the prompt is empty: at least one character is needed\n")


def test_the_traceback_is_shown_when_asked_for(cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEONFLOW_DEBUG", "1")
    ended = cli("plan", "bogus", "--model", "tiny")
    assert ended.code == 2
    assert "Traceback (most recent call last)" in ended.err
    assert ended.err.splitlines()[-1].startswith("error: plan 'bogus'")


def test_a_bug_is_called_one_and_is_one_line_too(cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path) -> None:
        raise KeyError("oops\nmore")

    monkeypatch.setattr("host.cli.model.read_card", broken)
    ended = cli("plan", "trisplit", "--model", "tiny")
    assert ended.code == 1
    assert ended.error == "error: KeyError: 'oops\\nmore' (a bug; AEONFLOW_DEBUG=1 shows where)"


def test_a_reader_that_leaves_early_is_no_error(home: Path) -> None:
    script = f"{sys.executable} -m host.cli explain; echo code $? >&2"
    done = subprocess.run(["bash", "-c", f"({script}) | true"], capture_output=True, timeout=60)
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert done.stderr.strip() in (b"code 141", b"code 0")  # 0: all fitted into the pipe before it was closed


def test_ctrl_c_while_modules_are_imported_is_no_traceback(home: Path) -> None:
    code = """
import importlib.abc, sys
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from host.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


HEAVY = ("numpy", "numba", "tokenizers", "jinja2", "cbor2", "stations", "host.engine")


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from host.cli.failure import run_app
run_app(["--help"])
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.stderr == b"[]\n"
    for name in ("run", "chat", "pull", "models", "up", "down", "status", "logs", "doctor", "station", "plan"):
        assert f" {name} ".encode() in done.stdout


def test_the_version_is_the_package_s(cli: RunCli) -> None:
    from importlib.metadata import version

    assert cli("--version") == Ended(0, f"aeonflow {version('aeonflow')}\n", "")
