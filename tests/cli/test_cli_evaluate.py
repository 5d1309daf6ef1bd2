"""`aeonflow eval` as a command: one JSON object or a table, and options it shares with `run`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from host.cli.chat import chat
from host.cli.evaluate import evaluate
from host.cli.groups import CacheOptions
from host.cli.planning import explain
from host.cli.run import run

from .conftest import Ended

Run = Callable[..., Ended]

TEXT = "Where there is a will, there is a way; {} times over, and {} times again.\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(TEXT.format(i, i * i) for i in range(40)), "utf-8")
    return path


def test_json_is_one_object_with_every_figure(cli: Run, text: Path) -> None:
    options = ("--model", "tiny", "--context", "128", "--tokens", "400", "--kv", "q4", "--kv-exact-recent", "8")
    ended = cli("eval", str(text), *options, "--against", "f16", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["option"]["kv"] == {"kv": "q4", "exact_recent": 8}
    assert found["exact"]["kv"] == {"kv": "f16"}
    assert found["files"] == [str(text)]
    assert (found["context"], found["tokens"], found["num_windows"]) == (128, [400], 3)
    for name in ("kl", "top1", "delta_ppl_percent", "recall"):
        assert found[name].keys() == {"value", "se"}
    assert found["kl"]["value"] > 0
    assert found["exactness"].keys() == {"cut", "model"}
    assert "Traceback" not in ended.err


def test_kernels_are_measured_beside_others(cli: Run, text: Path) -> None:
    options = ("--model", "tiny", "--context", "128", "--tokens", "130", "--kernels", "fast-int8", "--json")
    ended = cli("eval", str(text), *options, "--against-kernels", "fast")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert (found["kernels"], found["against_kernels"]) == ("fast-int8", "fast")
    assert found["exactness"] == {"cut": "exact", "model": "bounded"}
    assert 0 < found["logits_rms"] < 1
    assert found["kl"]["value"] > 0


def test_without_json_there_is_a_row_for_each_cache(cli: Run, text: Path) -> None:
    ended = cli("eval", str(text), "--model", "tiny", "--context", "128", "--tokens", "130", "--kv", "q8")
    assert ended.code == 0, ended.err
    assert [line.split()[0] for line in ended.out.splitlines()[:3]] == ["kv", "f32", "q8"]
    assert "of the bytes" in ended.out.splitlines()[3]
    assert "windows of 128 tokens: 1; 130 tokens of 1 text\n" in ended.err


def test_without_an_option_it_says_that_f32_is_compared_with_itself(cli: Run, text: Path) -> None:
    ended = cli("eval", str(text), "--model", "tiny", "--context", "128", "--tokens", "130")
    assert (ended.code, "f32 is compared with itself" in ended.err) == (0, True)


def test_o1_is_measured_beside_a_window_of_equal_bytes_and_the_report_decides(cli: Run, text: Path) -> None:
    overlay = ("--model", "tiny", "--kernels", "reference", "--o1", "m=4,w=16,sink=2")
    before = cli("run", "hello", *overlay, "--max-tokens", "2")
    assert "no report shows" in before.err
    ended = cli("eval", str(text), *overlay, "--context", "256", "--tokens", "600", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["window"]["option"]["kv"] == {"kv": "f32", "max_rows": 128, "evict": "recent", "sink": 2}
    wins = found["proof"]["wins"]
    assert found["exactness"]["model"] == ("certified" if wins else "approximate")
    after = cli("run", "hello", *overlay, "--max-tokens", "2")
    assert (after.code == 0) is wins, after.err
    assert wins or f"KL {found['proof']['kl']:.3g} against" in after.err


@pytest.mark.parametrize("command", [run, chat, evaluate, explain])
def test_every_kv_option_is_taken_wherever_one_is(command: Callable[..., None]) -> None:
    own = inspect.signature(command).parameters
    assert {"kv", "kv_exact_recent"} <= set(CacheOptions.__struct_fields__) <= own.keys()
    assert "cache" not in own


def test_what_cannot_be_measured_ends_with_one_line(cli: Run, tmp_path: Path, text: Path) -> None:
    missing = cli("eval", str(tmp_path / "none.txt"))
    assert (missing.code, "none.txt cannot be read as text" in missing.error) == (2, True)
    binary = tmp_path / "binary"
    binary.write_bytes(b"ab\xff\x00")
    assert "binary is not UTF-8 text: byte 0xff at offset 2 of 4" in cli("eval", str(binary)).error
    short = cli("eval", str(text), "--model", "tiny", "--context", "3000", "--tokens", "200", "--kernels", "reference")
    assert "too few for a context of 3000" in short.err
    assert short.code == 2
