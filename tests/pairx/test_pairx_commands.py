"""The commands of Pair X on a small model: probe, gate, and what depends on what they left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from host.fleet.state import cache_root

TIMEOUT_S = 240
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A cache folder of its own with one model, `tiny`, sharing compiled kernels."""
    folder = tmp_path_factory.mktemp("home")
    shutil.copytree(tiny_model, folder / "models" / "tiny")
    (folder / "jit").symlink_to(cache_root(os.environ) / "jit")
    return folder


def run(home: Path, *arguments: str) -> tuple[int, Any, str]:
    done = subprocess.run(
        [sys.executable, "-m", "host.cli", *arguments],
        capture_output=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "AEONFLOW_HOME": str(home)},
        stdin=subprocess.DEVNULL,
    )
    out = done.stdout.decode()
    return done.returncode, json.loads(out) if out.startswith("{") else out, done.stderr.decode()


def test_a_probe_is_kept_and_decides_which_layers_auto_takes(home: Path) -> None:
    ask = ("run", "--model", "tiny", "--plan", "trisplit", "--pair-x", "shadow", "--max-tokens", "4", "--json", "Hi")
    code, _, err = run(home, *ask, "--pair-x-layers", "auto:2")
    assert code == 2
    assert "run aeonflow pairx probe first" in err

    code, found, err = run(home, "pairx", "probe", "--model", "tiny", "--tokens", "32", "--new-tokens", "4", "--json")
    assert code == 0, err
    assert [one["layer"] for one in found["layers"]] == [1, 2, 3]
    assert Path(found["path"]).parent == home / "pairx"

    code, answer, err = run(home, *ask, "--pair-x-layers", "auto:2")
    assert code == 0, err
    assert answer["pair_x"]["layers"] == sorted(found["ranking"][:2])
    code, answer, err = run(home, *(one.replace("shadow", "live") for one in ask), "--approximate")
    assert code == 0, err
    assert "3 layers take a seed that the model was not built for: perplexity ×" in err
    assert answer["exactness"] == {"cut": "exact", "model": "approximate"}


def test_the_gate_tells_its_verdicts_keeps_them_and_leaves_live_closed(home: Path) -> None:
    code, found, err = run(home, "bench", "gate", "--model", "tiny", "--runs", "1", "--json")
    assert code == 0, err
    verdicts = {one["name"]: one for one in found["verdicts"]}
    assert list(verdicts) == ["coalescing", "seeds of 2 layers", "seeds of all layers", "token wall"]
    for name in ("seeds of 2 layers", "seeds of all layers"):
        assert (verdicts[name]["passed"], verdicts[name]["limit"]) == (False, 1e-4)
        assert verdicts[name]["measured"] > 1e-4
    assert verdicts["coalescing"]["passed"] == (verdicts["coalescing"]["measured"] >= 1.02)
    assert not found["permits_live"]
    kept = json.loads((home / "pairx" / "coalescing.json").read_text())
    assert kept["coalesce"] == verdicts["coalescing"]["passed"]
    code, _, err = run(home, "run", "--model", "tiny", "--plan", "trisplit", "--pair-x", "live", "Hi")
    assert code == 2
    assert "no gate (aeonflow bench gate) has found its seeds equal" in err
