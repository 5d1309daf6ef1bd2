"""`aeonflow pull`, `models`, `plan`, `explain`: what is there, what it costs, what an option does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from host.cli.children import run_verb
from host.cli.failure import CommandFailedError

from .conftest import Ended

RunCli = Callable[..., Ended]


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    monkeypatch.setenv("AEONFLOW_HOME", str(tmp_path))
    return tmp_path


def test_a_model_is_pulled_listed_verified_and_removed(empty_home: Path, cli: RunCli) -> None:
    assert cli("models") == Ended(0, "", f"no models in {empty_home}/models; import one with: aeonflow pull smollm2\n")
    pulled = cli("pull", "synthetic:layers=2,seed=5", "--name", "mine", "--json")
    assert pulled.code == 0, pulled.err
    assert json.loads(pulled.out)["num_layers"] == 2
    assert pulled.err.splitlines()[-1].startswith(f"imported mine at {empty_home}/models/mine, ")
    again = cli("pull", "synthetic:layers=2,seed=5", "--name", "mine")
    assert again.err.splitlines()[-1].startswith(f"already there: mine at {empty_home}/models/mine, ")
    (listed,) = json.loads(cli("models", "--json").out)
    assert (listed["name"], listed["files"], listed["files_total"]) == ("mine", 8, 8)
    assert cli("models").out.splitlines()[0].split() == ["model", "size", "files", "fingerprint", "source"]
    assert cli("models", "verify", "mine", "--json") == Ended(0, '{"verified": "mine"}\n', "mine is intact\n")
    removed = cli("models", "rm", "mine", "--json")
    assert "removed mine: " in removed.err
    assert json.loads(removed.out) == {"removed": "mine", "bytes": listed["bytes"]}
    assert json.loads(cli("models", "--json").out) == []


def test_only_the_weights_of_the_roles_asked_for_are_kept(empty_home: Path, cli: RunCli) -> None:
    assert cli("pull", "synthetic:layers=2,seed=5", "--name", "part", "--roles", "attn:0-1").code == 0
    (listed,) = json.loads(cli("models", "--json").out)
    assert (listed["files"], listed["files_total"]) == (2, 8)


def test_damage_is_found(empty_home: Path, cli: RunCli) -> None:
    assert cli("pull", "synthetic:layers=2,seed=5", "--name", "mine").code == 0
    file = empty_home / "models" / "mine" / "attn.001.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    ended = cli("models", "verify", "mine")
    assert ended.code == 1
    assert "attn.001.safetensors: blake3" in ended.error


def test_the_child_s_last_line_is_told_when_it_gives_no_result(home: Path) -> None:
    with pytest.raises(
        CommandFailedError, match=r"nonsense: the child gave no result \(exit status \d+\); last log line"
    ):
        run_verb("nonsense", [])


def test_a_plan_s_table_has_a_row_a_station_and_the_hops(cli: RunCli) -> None:
    ended = cli("plan", "trisplit+shards=2", "--model", "tiny", "--rtt-ms", "1")
    assert ended.code == 0
    rows = ended.out.splitlines()
    assert [row.split()[0] for row in rows[1:6]] == ["attn", "gate_up", "down", "ends-0", "ends-1"]
    assert "chain: 15 hops" in rows[-1]
    assert "warning: a token takes" in ended.err


def test_a_plan_as_toml_is_read_back_to_the_same_plan(cli: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "copy.toml"
    path.write_text(cli("plan", "layers:2", "--model", "tiny", "--toml").out)
    first = json.loads(cli("plan", "layers:2", "--model", "tiny", "--json").out)
    again = json.loads(cli("plan", str(path), "--model", "tiny", "--json").out)
    assert again["stations"] == first["stations"]
    assert again["hops_per_token"] == first["hops_per_token"] == 3


def test_a_slower_network_predicts_fewer_tokens_a_second(cli: RunCli) -> None:
    near, far = (
        json.loads(cli("plan", "layers:2", "--model", "tiny", "--rtt-ms", rtt, "--json").out) for rtt in ("0.1", "40")
    )
    assert far["tok_s"] < near["tok_s"]
    assert far["token_s"] == pytest.approx(near["token_s"] + 3 * (0.02 - 0.00005))


def test_explain_tells_both_answers_of_each_option_and_of_all_together(cli: RunCli) -> None:
    found = json.loads(cli("explain", "--kernels", "reference", "--plan", "trisplit", "--json").out)
    assert [(row["option"], row["cut"], row["model"]) for row in found["options"]] == [
        ("plan", "exact", "exact"),
        ("kernels", "bounded", "exact"),
    ]
    assert found["exactness"] == {"cut": "bounded", "model": "exact"}
    few = json.loads(cli("explain", "--kv", "q4", "--kv-exact-recent", "8", "--json").out)
    assert [(e["option"], e["value"], e["model"]) for e in few["options"][:2]] == [
        ("kv", "q4", "certified"), ("kv_exact_recent", "few", "approximate"),
    ]  # fmt: skip
    table = cli("explain").out.splitlines()
    assert table[0].split()[:4] == ["option", "value", "cut", "model"]
    assert len(table) > 30
