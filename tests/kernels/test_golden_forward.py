"""SmolLM2 from the kernels alone, no station, no wire: the golden greedy tokens of exact f32, 64 past any end."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from stations.kernels import Backend, Span, make_backend
from stations.kernels.fast.target import current_target, settings_without
from stations.models.folder import ModelFolder
from stations.models.roles import all_roles

from .tiny import new_cache

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "smollm2.json").read_text())
NUM_TOKENS = 64


def _generate(backend: Backend, num_layers: int, prompt: list[int], chunk: int) -> tuple[list[int], str]:
    """Greedy tokens, and the blake3 of the logits rows they were chosen from."""
    caches = [new_cache(backend, len(prompt) + NUM_TOKENS) for _ in range(num_layers)]
    position, tokens, digest = 0, [], blake3()
    waiting = list(prompt)
    while len(tokens) < NUM_TOKENS:
        ids = np.array(waiting[:chunk], np.uint32)
        waiting = waiting[chunk:]
        spans = [[Span(cache, position, len(ids))] for cache in caches]
        x = backend.block(0, num_layers - 1, backend.embed(ids, 0, 1), spans)
        position += len(ids)
        if not waiting:
            logits = backend.head(x[-1:], 0, 1)[0]
            digest.update(logits.astype("<f4").tobytes())
            tokens.append(int(logits.argmax()))
            waiting = tokens[-1:]
    return tokens, digest.hexdigest()


def answer_hash(kernels: str, folder: ModelFolder) -> str:
    """The hash of the logits of the first golden answer."""
    backend = make_backend(kernels, folder, all_roles(folder.card.num_layers))
    return _generate(backend, folder.card.num_layers, GOLDEN["prompts"][0]["prompt_ids"], 64)[1]


_CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from kernels.test_golden_forward import ModelFolder, answer_hash
for kernels in sys.argv[3:]:
    print(answer_hash(kernels, ModelFolder.open(sys.argv[2])))
"""


@pytest.mark.slow  # compiles every kernel for another target: half a minute
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="features named here are x86's")
def test_the_golden_answer_has_the_same_logits_hash_without_avx512(smollm2: Path) -> None:
    settings = settings_without("avx512", current_target(os.environ))
    assert "+avx512" not in settings["NUMBA_CPU_FEATURES"]
    names = ("fast", "fast-int8")
    command = [sys.executable, "-c", _CHILD, str(Path(__file__).parents[1]), str(smollm2), *names]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    found = done.stdout.split()
    assert found == [answer_hash(name, ModelFolder.open(smollm2)) for name in names]
    assert len(set(found)) == 2


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("kernels", "threads", "chunk", "prompts"),
    [
        ("fast", 1, 64, slice(5)),
        ("fast", 2, 7, slice(5)),
        ("reference", 1, 64, slice(1)),
        pytest.param("reference", 1, 64, slice(1, 5), marks=SLOW),
    ],
)
def test_prompts_give_the_golden_tokens(kernels: str, threads: int, chunk: int, prompts: slice, smollm2: Path) -> None:
    folder = ModelFolder.open(smollm2)
    backend = make_backend(kernels, folder, all_roles(folder.card.num_layers), threads)
    for prompt in GOLDEN["prompts"][prompts]:
        tokens, _ = _generate(backend, folder.card.num_layers, prompt["prompt_ids"], chunk)
        assert tokens == prompt["f32_ref"]["greedy_ids"]


def test_every_logit_is_the_same_for_any_chunk_and_threads(smollm2: Path) -> None:
    folder = ModelFolder.open(smollm2)
    layers = folder.card.num_layers
    prompt = GOLDEN["prompts"][0]["prompt_ids"]
    one = make_backend("fast", folder, all_roles(layers), 1)
    two = make_backend("fast", folder, all_roles(layers), 2)
    found = {_generate(b, layers, prompt, chunk)[1] for b, chunk in ((one, 1), (one, len(prompt)), (two, 13))}
    assert len(found) == 1
