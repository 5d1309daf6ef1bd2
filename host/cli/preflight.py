"""What can be refused from files on this machine, before any station starts: plan, seeds, O(1) layers, sizes.

The engine checks all of it again by what its stations say; here nobody has waited for them yet.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cache import model_path
from .failure import CommandFailedError, UsageError
from .groups import CacheOptions, EngineOptions

if TYPE_CHECKING:
    from host.card import HostCard
    from host.pairx import PairX

    from .model import ReadyModel

TOKENIZER_FILE = "tokenizer.json"  # of a model's folder (`docs/design.md`, *Weights on disk*)
SURE_TOKEN_CHARS = 4  # the longest token of any tokenizer has more: shorter prompts may fit, without a look at it
SOLO, OFF = "solo", "off"


def check_trace(path: Path | None) -> None:
    """UsageError for a trace that could not be written at the end."""
    if path is None:
        return
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"--trace {path}: there is no folder {folder}")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"--trace {path} cannot be written")


def check_model(engine: EngineOptions, cache: CacheOptions, model: ReadyModel, prompt: str, context: int) -> None:
    """Refuse what an engine would on this model: its plan and seeds, layers that are not shown to gain, a small model
    that is not there, a `prompt` no tokenization of which fits, a `context` of windows (0: none) it has not.

    Raises PlanError, InvalidRequestError and its kin, UsageError.
    """
    from host.evaluate.windows import check_context
    from host.kv_options import make_kv_options
    from host.overlay_proof import is_certified, proofs_folder
    from host.pairx import PairX
    from host.speculate.drafters import SpeculateMode

    from .model import ready_model

    given: Any = cache.given()
    asked = PairX.asked(engine.pair_x or OFF, engine.pair_x_layers, engine.pair_x_seed, given)
    card = check_seeds(asked, engine.plan or SOLO, model)
    kv = make_kv_options(**given)
    is_certified(kv, card.fingerprint, proofs_folder(os.environ), approximate=cache.approximate)
    if small := SpeculateMode.parse(engine.speculate or OFF).model:
        ready_model(small)
    if context:
        check_context(context, card.context_length)
    _check_prompt(model, prompt, kv.max_positions(card.context_length))


def check_seeds(asked: PairX, plan: str, model: ReadyModel) -> HostCard:
    """The model's card, for a plan on which it may have the seeds that are asked for; refused as an engine would."""
    import msgspec

    from host.card import HostCard
    from host.pairx.decide import decide
    from host.plan import make_plan

    try:
        card = msgspec.convert(model.card, HostCard)
    except msgspec.ValidationError as error:
        raise CommandFailedError(f"the card of model {model.name!r}: {error}") from None
    asked.check()
    decide(asked, make_plan(plan, model.num_layers), card, None)
    return card


def _check_prompt(model: ReadyModel, prompt: str, limit: int) -> None:
    """ContextLengthError where the longest tokens would be too many; most texts are short enough to see it at once."""
    from host.request import check_size
    from host.text import TextModel

    if len(prompt) > SURE_TOKEN_CHARS * limit:
        text = TextModel.from_card(model.card, (model_path(model.name) / TOKENIZER_FILE).read_bytes())
        check_size(text, limit, prompt)
