"""Generated models: `synthetic:layers=4,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=512,seed=1,type=q4_1`.

Real models in form, seeded, for tests, geometry and benches. Weights are scaled so that every part matters: attention
prefers some keys, the residual is soon made of layer outputs rather than of the last token, and logits vary.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .build import build_folder
from .card import ModelCard, Rope
from .checkpoint import F32, SourceTensor, expected_shapes
from .folder import ModelFolder
from .synthetic_spec import SyntheticSpec
from .synthetic_tokenizer import synthetic_tokenizer
from .synthetic_weights import block_reader

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'"
    " + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
EMBEDDING_STD = 0.05  # small beside the layers' outputs of about 1, which then dominate the residual
LOGIT_STD = 3.0  # by the final norm's weight: far from uniform, far from certain
SINK_MEAN, SINK_STD = 4.0, 1.5  # of sink logits, beside the largest of some hundred scores
ATTENTION_GAIN = 1.5  # on q and k: scores of std 2.25, attention that chooses


class SyntheticCheckpoint:
    """A generated model as a checkpoint: nothing is generated before it is read."""

    def __init__(self, spec: SyntheticSpec) -> None:
        self.spec = spec
        self.card = ModelCard(
            name=spec.name,
            architecture="llama",
            num_layers=spec.layers,
            hidden_size=spec.hidden,
            num_heads=spec.heads,
            num_kv_heads=spec.kv_heads,
            head_dim=spec.dim,
            ffn_size=spec.ffn,
            vocab_size=spec.vocab,
            context_length=spec.context,
            rms_eps=1e-5,
            rope=Rope(theta=float(spec.theta), dim=spec.dim),
            tied_embeddings=bool(spec.tied),
            bos_id=1,
            eos_ids=(0, 2),
            add_bos=False,
            chat_template=CHAT_TEMPLATE,
            residual=spec.residual,
            attention=spec.attention,
            source=f"generated, seed {spec.seed}, weights {spec.type}",
        )
        self.tokenizer_json = synthetic_tokenizer(spec.vocab)
        self.tensors = {
            name: self._tensor(number, name, rows, cols)
            for number, (name, (rows, cols)) in enumerate(sorted(expected_shapes(self.card).items()))
        }

    def _tensor(self, number: int, name: str, rows: int, cols: int) -> SourceTensor:
        if "sinks" in name:
            logits = np.random.default_rng([self.spec.seed, number]).normal(SINK_MEAN, SINK_STD, cols).astype("<f4")
            return _vector(name, logits)
        if rows == 1 and "norm" in name:
            gain = LOGIT_STD / (EMBEDDING_STD * cols**0.5) if name == "output_norm.weight" else 1.0
            rng = np.random.default_rng([self.spec.seed, number])
            values = (gain * (1 + 0.1 * rng.standard_normal(cols))).astype("<f4")
            return _vector(name, values)
        read = block_reader(self.spec.type, (self.spec.seed, number), rows, cols, _std(name, cols))
        return SourceTensor(name, self.spec.type.upper(), rows, cols, read)


def build_synthetic(spec: str | SyntheticSpec, folder: str | Path) -> ModelFolder:
    """Generate a model into `folder` (the model folder itself), replacing what is there; tiny ones take < 1 s."""
    parsed = SyntheticSpec.parse(spec) if isinstance(spec, str) else spec
    return build_folder(SyntheticCheckpoint(parsed), Path(folder))


def _vector(name: str, values: F32) -> SourceTensor:
    return SourceTensor(name, "F32", 1, values.size, lambda lo, hi: values.view(np.uint8).reshape(1, -1)[lo:hi])


def _std(name: str, cols: int) -> float:
    if name in ("token_embd.weight", "output.weight"):
        return EMBEDDING_STD
    gain = ATTENTION_GAIN if "attn_q" in name or "attn_k" in name else 1.0
    return float(gain / cols**0.5)
