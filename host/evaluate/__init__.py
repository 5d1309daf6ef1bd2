"""What an option of the KV cache costs and saves, measured on text: perplexity, recall, KL, bytes, rates."""

from .estimate import Estimate, mean
from .prove import prove
from .report import Evaluation, Side
from .run import evaluate, texts_to_windows
from .windows import Window, windows_of

__all__ = ["Estimate", "Evaluation", "Side", "Window", "evaluate", "mean", "prove", "texts_to_windows", "windows_of"]
