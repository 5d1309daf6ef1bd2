"""SmolLM2 from the kernels alone, no station, no wire: the golden greedy tokens of exact f32, 64 past any end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from stations.kernels import Backend, Span, make_backend
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
