from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors import safe_open

from stations.models import (
    CorruptModelError,
    DiskSpaceError,
    FileEntry,
    Manifest,
    MissingWeightsError,
    ModelCard,
    ModelError,
    ModelFolder,
    ModelNotFoundError,
    ModelStore,
    Rope,
    TensorEntry,
    UnsupportedModelError,
    build_synthetic,
    parse_roles,
)
from stations.models import packing as packing_module
from stations.models.build import build_folder, check_disk, placing
from stations.models.documents import Bundle, decode_bundle, encode_bundle, encode_document
from stations.models.fingerprint import fingerprint
from stations.models.roles import RoleSpan, layer_roles
from stations.models.store import cache_folder
from stations.models.synthetic import SyntheticCheckpoint
from stations.models.synthetic_spec import SyntheticSpec

SPEC = "synthetic:layers=3,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=512,seed=1,type=q4_1"
LITERAL_CARD = ModelCard(
    name="any", architecture="llama", num_layers=1, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16,
    ffn_size=128, vocab_size=259, context_length=2048, rms_eps=1e-5, rope=Rope(theta=10_000.0, dim=16),
    tied_embeddings=True, bos_id=1, eos_ids=(0, 2), add_bos=False, chat_template="é {{ x }}", source="any",
)  # fmt: skip
LITERAL_MANIFEST = Manifest(
    layout_version=1,
    tokenizer_blake3="11" * 32,
    tied_head=True,
    files=(
        FileEntry(
            name="down.000.safetensors", role="down", layer=0, bytes=8192, blake3="22" * 32,
            tensors=(TensorEntry("down", "q4_1", rows=64, cols=128, offset=4096, bytes=4096, blake3="33" * 32),),
        ),
    ),
)  # fmt: skip
GOLDEN_FINGERPRINT = "e8d4a329ccaa1640bc5840c5330c3d0726cef573634d14416537d56e1da8c73b"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return build_synthetic(SPEC, tmp_path_factory.mktemp("models") / "tiny")


def test_the_fingerprint_is_the_same_in_every_process(folder: ModelFolder, tmp_path: Path) -> None:
    script = (
        "import sys; from stations.models import build_synthetic;"
        "print(build_synthetic(sys.argv[1], sys.argv[2]).card.fingerprint)"
    )
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", script, SPEC, str(tmp_path / hash_seed)]
        printed = subprocess.run(command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
        assert printed.stdout.strip() == folder.card.fingerprint


def test_the_fingerprint_of_literal_values_is_the_golden_digest() -> None:
    assert fingerprint(LITERAL_CARD, LITERAL_MANIFEST) == GOLDEN_FINGERPRINT


def test_the_fingerprint_covers_card_tokenizer_and_every_tensor_but_no_label(folder: ModelFolder) -> None:
    card, manifest = folder.card, folder.manifest
    assert fingerprint(card, manifest) == card.fingerprint
    renamed = msgspec.structs.replace(card, name="other", source="elsewhere", fingerprint="")
    assert fingerprint(renamed, manifest) == card.fingerprint
    others = [
        (msgspec.structs.replace(card, rms_eps=1e-6), manifest),
        (msgspec.structs.replace(card, eos_ids=(2,)), manifest),
        (msgspec.structs.replace(card, chat_template=None), manifest),
        (card, msgspec.structs.replace(manifest, tokenizer_blake3="0" * 64)),
        (card, msgspec.structs.replace(manifest, layout_version=2)),
    ]
    for number, entry in enumerate(manifest.files):
        for tensor in entry.tensors:
            changed = tuple(
                msgspec.structs.replace(t, blake3="0" * 64) if t.name == tensor.name else t for t in entry.tensors
            )
            files = list(manifest.files)
            files[number] = msgspec.structs.replace(entry, tensors=changed)
            others.append((card, msgspec.structs.replace(manifest, files=tuple(files))))
    found = {fingerprint(*other) for other in others}
    assert len(found) == len(others)
    assert card.fingerprint not in found


def test_arrays_are_read_only_views_of_a_map_that_begin_on_cache_lines(folder: ModelFolder) -> None:
    for entry in folder.manifest.files:
        for tensor in entry.tensors:
            if tensor.kind == "vector":
                array: np.ndarray = folder.norm(entry.role, entry.layer, tensor.name)
            else:
                array = folder.matrix(entry.role, entry.layer, tensor.name).data
            assert not array.flags.writeable
            assert array.ctypes.data % 64 == 0
            base = array
            while isinstance(base, np.ndarray):
                base = base.base  # type: ignore[assignment]
            assert isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)


def test_weight_files_are_valid_safetensors(folder: ModelFolder) -> None:
    with safe_open(folder.path / "attn.001.safetensors", "np") as file:
        assert set(file.keys()) >= {"norm1", "norm2", "qkv", "output"}
        assert np.array_equal(file.get_tensor("norm1"), folder.norm("attn", 1, "norm1"))
        assert np.array_equal(file.get_tensor("qkv"), folder.matrix("attn", 1, "qkv").data)


def test_packing_by_slabs_gives_the_bytes_of_packing_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = "synthetic:layers=1,hidden=256,heads=4,kv_heads=2,ffn=768,vocab=1000,type="
    for weight_type in ("q4_k", "q5_1", "f16"):
        whole = build_synthetic(spec + weight_type, tmp_path / "whole")
        monkeypatch.setattr(packing_module, "SLAB_BYTES", 5000)
        slabs = build_synthetic(spec + weight_type, tmp_path / "slabs")
        monkeypatch.undo()
        assert slabs.manifest == whole.manifest


def test_opening_names_what_is_wrong(folder: ModelFolder, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"card\.json is not there"):
        ModelFolder.open(tmp_path)
    for name in ("card.json", "tokenizer.json", "manifest.json"):
        broken = build_synthetic(SPEC, tmp_path / "broken").path / name
        broken.write_bytes(broken.read_bytes()[:-40])
        with pytest.raises(CorruptModelError, match=name):
            ModelFolder.open(tmp_path / "broken")
    short = build_synthetic(SPEC, tmp_path / "broken").path / "down.001.safetensors"
    size = short.stat().st_size
    short.write_bytes(short.read_bytes()[:-64])
    with pytest.raises(
        CorruptModelError, match=rf"down\.001\.safetensors: {size - 64} bytes, the manifest says {size}"
    ):
        ModelFolder.open(tmp_path / "broken")


def test_a_manifest_that_leads_out_of_the_folder_or_the_file_is_refused(folder: ModelFolder, tmp_path: Path) -> None:
    manifest = msgspec.to_builtins(folder.manifest)
    broken = build_synthetic(SPEC, tmp_path / "broken").path / "manifest.json"

    def edited(**changes: object) -> bytes:
        return msgspec.json.encode({**manifest, "files": [{**manifest["files"][0], **changes}]})

    tensor = manifest["files"][0]["tensors"][0]
    for data in (
        edited(name="../../etc/passwd"),
        edited(role="../x", name="../x.000.safetensors"),
        edited(tensors=[{**tensor, "offset": manifest["files"][0]["bytes"]}]),
        edited(tensors=[{**tensor, "offset": 4097}]),
        edited(tensors=[{**tensor, "bytes": -64}]),
    ):
        broken.write_bytes(data)
        with pytest.raises(CorruptModelError, match=r"manifest\.json"):
            ModelFolder.open(tmp_path / "broken")
    broken.write_bytes(msgspec.json.encode({**manifest, "layout_version": 99}))
    with pytest.raises(UnsupportedModelError, match="layout version 99 on disk"):
        ModelFolder.open(tmp_path / "broken")


@pytest.mark.parametrize(("field", "value"), [("architecture", "gptj"), ("activation", "gelu"), ("residual", "tree")])
def test_a_card_of_other_arithmetic_is_refused_by_name(
    field: str, value: str, folder: ModelFolder, tmp_path: Path
) -> None:
    card = msgspec.structs.replace(folder.card, fingerprint="", **{field: value})
    card = msgspec.structs.replace(card, fingerprint=fingerprint(card, folder.manifest))
    broken = build_synthetic(SPEC, tmp_path / "other").path
    (broken / "card.json").write_bytes(encode_document(card))
    with pytest.raises(UnsupportedModelError, match=f"{field} '{value}'; supported is"):
        ModelFolder.open(broken)
    with pytest.raises(UnsupportedModelError, match=f"{field} '{value}'; supported is"):
        decode_bundle(encode_bundle(Bundle(card, folder.tokenizer_json, folder.manifest)))


def test_verify_finds_one_changed_byte(tmp_path: Path) -> None:
    model = build_synthetic(SPEC, tmp_path / "m")
    model.verify()
    path = model.path / "gate_up.002.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptModelError, match=r"gate_up\.002\.safetensors: blake3"):
        ModelFolder.open(model.path).verify()


def test_only_the_files_of_the_roles_are_kept_and_the_manifest_lists_all(tmp_path: Path) -> None:
    whole = build_synthetic(SPEC, tmp_path / "whole")
    spans = parse_roles("attn:0-1,gate_up:2,head", 3)
    part = build_folder(SyntheticCheckpoint(SyntheticSpec.parse(SPEC)), tmp_path / "part", roles=spans)
    kept = {p.name for p in part.path.glob("*.safetensors")}
    expected = {"attn.000", "attn.001", "gate_up.002", "head", "embed"}  # a tied head reads embed's file
    assert kept == {f"{name}.safetensors" for name in expected}
    assert part.manifest == whole.manifest
    assert part.card == whole.card
    assert part.missing(spans) == ()
    assert [f.name for f in part.missing(parse_roles("down:1,attn:1", 3))] == ["down.001.safetensors"]
    assert part.has("attn", 1)
    assert not part.has("attn", 2)
    assert np.array_equal(part.matrix("attn", 1, "qkv").data, whole.matrix("attn", 1, "qkv").data)
    with pytest.raises(MissingWeightsError, match=r"does not hold attn\.002\.safetensors"):
        part.matrix("attn", 2, "qkv")
    with pytest.raises(MissingWeightsError, match="norm1, norm2, qkv, output, not 'q'"):
        part.matrix("attn", 1, "q")


def test_an_untied_head_does_not_need_the_embedding(tmp_path: Path) -> None:
    spec = SyntheticSpec.parse(SPEC + ",tied=0")
    part = build_folder(SyntheticCheckpoint(spec), tmp_path / "part", roles=parse_roles("head:1/2", 3))
    assert [p.name for p in part.path.glob("*.safetensors")] == ["head.safetensors"]
    assert part.matrix("head", 0, "head").rows == 512


def test_a_build_that_fails_leaves_the_model_that_was_there(tmp_path: Path) -> None:
    before = build_synthetic(SPEC, tmp_path / "m").manifest

    def interrupt(stage: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_folder(SyntheticCheckpoint(SyntheticSpec.parse(SPEC + ",seed=2")), tmp_path / "m", progress=interrupt)
    assert ModelFolder.open(tmp_path / "m").manifest == before
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["m"]


def test_two_imports_of_one_name_do_not_meet(tmp_path: Path) -> None:
    with placing(tmp_path / "m"), pytest.raises(ModelError, match="in use by another process"):
        build_synthetic(SPEC, tmp_path / "m")


def test_a_disk_without_room_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(DiskSpaceError, match=r"needs 1,000,000,000,000,000 bytes in .* are free"):
        check_disk(tmp_path, 10**15, "importing")
    huge = "synthetic:layers=100,hidden=262144,heads=1024,kv_heads=1024,ffn=1048576,vocab=300,type=f32"
    with pytest.raises(DiskSpaceError, match="importing synthetic"):
        build_synthetic(huge, tmp_path / "huge")
    assert not (tmp_path / "huge").exists()


def test_role_lists_are_read_and_refused_by_item() -> None:
    assert parse_roles("attn:0-2, gate_up:1 ,embed:1/2,head,down", 3) == (
        RoleSpan("attn", 0, 2),
        RoleSpan("gate_up", 1, 1),
        RoleSpan("embed", part=1, parts=2),
        RoleSpan("head"),
        RoleSpan("down", 0, 2),
    )
    assert layer_roles([RoleSpan("block", 1, 2)]) == {(r, n) for r in ("attn", "gate_up", "down") for n in (1, 2)}
    refused = (
        "",
        "attn:0-3",
        "attn:2-1",
        "attn:0/2",
        "head:0-1",
        "head:2/2",
        "head:0/33",
        "warp:1",
        "attn:x",
        "attn:-1",
    )
    for text in refused:
        with pytest.raises(UnsupportedModelError):
            parse_roles(text, 3)
    with pytest.raises(UnsupportedModelError, match="'attn:0-3': layers 0-3, the model has 0-2"):
        parse_roles("embed,attn:0-3", 3)


def test_an_ffn_slice_is_a_role_of_layers_and_a_part_and_needs_the_files_of_gate_up_and_down(tmp_path: Path) -> None:
    spans = parse_roles("ffn:0-1:1/2,ffn:2:3/8", 3)
    assert spans == (RoleSpan("ffn", 0, 1, 1, 2), RoleSpan("ffn", 2, 2, 3, 8))
    assert ",".join(map(str, spans)) == "ffn:0-1:1/2,ffn:2-2:3/8"
    assert layer_roles(spans[1:]) == {("gate_up", 2), ("down", 2)}
    model = build_synthetic(SPEC, tmp_path / "m")
    needed = {entry.name for entry in model.manifest.files_for(spans[:1])}
    assert needed == {f"{role}.{layer:03d}.safetensors" for role in ("gate_up", "down") for layer in (0, 1)}
    for text in ("ffn", "ffn:0-2", "ffn:0/2", "ffn:0-2:2/2", "ffn:0-2:0/3", "ffn:0-2:0/16", "ffn:0-2:0/1", "ffn:0-2:0"):
        with pytest.raises(UnsupportedModelError, match="ffn"):
            parse_roles(text, 3)
    with pytest.raises(UnsupportedModelError, match="'ffn:2-3:0/2': layers 2-3, the model has 0-2"):
        parse_roles("ffn:2-3:0/2", 3)


def test_the_store_lists_finds_and_removes(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    assert store.list() == []
    model = build_synthetic(SPEC, store.path("one"))
    generated = SyntheticSpec.parse("synthetic:layers=1,seed=9")
    build_synthetic(generated, store.path(generated.name))
    (store.models / "half").mkdir()
    (listed, other) = store.list()
    assert (listed.name, listed.fingerprint, listed.files) == ("one", model.card.fingerprint, len(model.manifest.files))
    assert other.name == "synthetic-layers1-seed9"
    assert store.resolve("one") == store.resolve(str(model.path)) == model.path
    assert store.resolve("synthetic:seed=9,layers=1").name == generated.name
    with pytest.raises(ModelNotFoundError, match=r"'two' is not in .*there: one, synthetic-layers1-seed9"):
        store.resolve("two")
    assert store.remove("one") > 0
    assert store.names() == [generated.name]
    with pytest.raises(ModelNotFoundError):
        store.remove("one")
    for name in ("../up", "", ".hidden", "a/b", "x" * 101):
        with pytest.raises(ModelError):
            store.path(name)


def test_the_cache_folder_follows_the_environment() -> None:
    assert cache_folder({"AEONFLOW_HOME": "/data/models"}) == Path("/data/models")
    assert cache_folder({}) == Path.home() / ".cache" / "aeonflow"
