"""llama-cpp-python as a child that answers JSON lines: what `peers.py` starts under whatever Python has it.

Knows nothing of aeonflow. The first line of stdin is the setting {model, threads, context, kv, flash_attn, all_logits};
every further line {prompt, new_tokens} is one greedy answer, told as {prefill_s, decode_s, …_cpu_s, token_ids,
peak_rss_bytes}. Decode counts from the first token chosen to the last. {rows, file} writes the logits of rows fed as
they stand, f32, with numpy; `all_logits` makes room for them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np

GGML_TYPES = {"f32": 0, "f16": 1}


def main() -> None:
    setting = json.loads(sys.stdin.readline())
    model = llama_cpp.Llama(
        setting["model"],
        n_ctx=setting["context"],
        n_threads=setting["threads"],
        n_threads_batch=setting["threads"],
        type_k=GGML_TYPES[setting["kv"]],
        type_v=GGML_TYPES[setting["kv"]],
        flash_attn=setting["flash_attn"],
        logits_all=setting.get("all_logits", False),
        verbose=False,
    )
    print(json.dumps({"version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        reply = logits(model, **question) if "rows" in question else answer(model, **question)
        print(json.dumps(reply), flush=True)


def answer(model: llama_cpp.Llama, prompt: list[int], new_tokens: int) -> dict[str, object]:
    model.reset()
    began, began_cpu = time.perf_counter(), time.process_time()
    model.eval(prompt)
    token_ids = [chosen(model)]
    first, first_cpu = time.perf_counter(), time.process_time()
    while len(token_ids) < new_tokens:
        model.eval(token_ids[-1:])
        token_ids.append(chosen(model))
    last, last_cpu = time.perf_counter(), time.process_time()
    return {
        "prefill_s": first - began,
        "decode_s": last - first,
        "prefill_cpu_s": first_cpu - began_cpu,
        "decode_cpu_s": last_cpu - first_cpu,
        "token_ids": token_ids,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def logits(model: llama_cpp.Llama, rows: list[int], file: str) -> dict[str, object]:
    model.reset()
    model.eval(rows)
    np.save(file, np.asarray(model.scores[: len(rows)], np.float32))
    return {}


def chosen(model: llama_cpp.Llama) -> int:
    """The likeliest token after the rows evaluated last."""
    pointer = llama_cpp.llama_get_logits_ith(model.ctx, -1)
    return int(np.ctypeslib.as_array(pointer, shape=(model.n_vocab(),)).argmax())


def peak_rss_bytes() -> int:
    """The most memory this process ever had resident, shared pages included; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


if __name__ == "__main__":
    main()
