"""Helper threads share work and never change a bit, also when the system puts them aside in the middle of a chunk."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from stations.errors import KernelError
from stations.kernels.fast import fields as f
from stations.kernels.fast.backend import FastKernels
from stations.kernels.fast.helper_choice import HelperChoice

from .tiny import TinyWeights, bits, rows, run_layers, tiny_card

WIDE = {"hidden_size": 512, "num_heads": 8, "num_kv_heads": 4, "ffn_size": 1536, "vocab_size": 4096}


class EveryCall(HelperChoice):
    """Helpers in every call, also where they do not pay."""

    def wants_helpers(self, operation: int, rows: int) -> bool:
        super().wants_helpers(operation, rows)
        return True


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_any_number_of_threads_gives_the_same_bits(threads, fast) -> None:
    weights = TinyWeights("q4_1", tiny_card(**WIDE))
    one, several = fast(weights), fast(weights, threads)
    several.helper_choice = EveryCall()
    x = rows(150, 512)
    for cuts in ([150], [130, *[1] * 20]):
        whole = run_layers(one, x, cuts)
        assert np.array_equal(bits(run_layers(several, x, cuts)), bits(whole))
    assert np.array_equal(bits(several.head(x[:37], 0, 1)), bits(one.head(x[:37], 0, 1)))
    assert _helped_chunks(several) > 0


def test_chunks_taken_over_from_stalled_helpers_change_nothing(fast) -> None:
    weights = TinyWeights("q4_1", tiny_card(**WIDE))
    one, several = fast(weights), fast(weights, 8)  # far more threads than cores: some are always put aside
    several.helper_choice = EveryCall()
    x = rows(80, 512)  # caches of 16 rows grow on the way, and go at the end of each run
    expected = run_layers(one, x, [1] * 80, capacity=16)
    stop = threading.Event()
    # busy threads of this process make the system put helpers aside; numpy products release the GIL
    burners = [threading.Thread(target=_burn, args=(stop,)) for _ in range(4)]
    for thread in burners:
        thread.start()
    try:
        for _ in range(40):
            assert np.array_equal(bits(run_layers(several, x, [1] * 80, capacity=16)), bits(expected))
            if several.workspace.pool[f.POOL_STOLEN] > 20:
                break
    finally:
        stop.set()
        for thread in burners:
            thread.join()


def _helped_chunks(kernels: FastKernels) -> int:
    """Chunks that helper threads have computed so far."""
    return int(kernels.workspace.pool[f.POOL_SLOTS + 3 :: f.POOL_LINE].sum())


def _burn(stop: threading.Event) -> None:
    a = np.ones((256, 256), np.float32)
    while not stop.is_set():
        a @ a


def test_helpers_end_with_their_backend(fast) -> None:
    kernels = fast(TinyWeights("q4_1", tiny_card(**WIDE)), 3)
    run_layers(kernels, rows(5, 512), [5])
    names = {t.name for t in threading.enumerate()}
    assert {"kernel-helper-0", "kernel-helper-1"} <= names
    before = threading.active_count()
    kernels.close()
    assert threading.active_count() == before - 2


def test_thread_counts_outside_the_limits_are_refused(fast) -> None:
    with pytest.raises(KernelError, match="9 threads: the fast kernels take 1 to 8"):
        fast(TinyWeights("q4_1"), 9)
