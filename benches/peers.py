"""aeonflow in solo beside llama-cpp-python on the same GGUF file (METHOD.md).

The peer runs under `--peer-python`, in an environment of its own if that is where it is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from aeonflow import new_event_loop
from host.bench.decode import prompt_ids
from host.bench.echo import LIBRARIES, bare_round_trips, echo_process, usable
from host.bench.measure import machine, spread
from host.bench.side_by_side import Child, compare, own_command, read_bandwidth

ECHO_BYTES, ECHO_ROUNDS = 2362, 400  # a row of 576 with its prefix and header

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--gguf", type=Path, required=True, help="the file the peer reads; --model was imported from it")
parser.add_argument("--model", default="smollm2", help="our name of the same model")
parser.add_argument("--peer-python", default=sys.executable, help="a Python that has llama-cpp-python")
parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
parser.add_argument("--kernels", default="fast")
parser.add_argument("--kv", default="f32")
parser.add_argument("--peer-kv", choices=("f16", "f32"), default="f16", help="f16 is the peer's own default")
parser.add_argument("--peer-flash-attn", action="store_true")
parser.add_argument("--prompt-tokens", type=int, default=256)
parser.add_argument("--new-tokens", type=int, default=64)
parser.add_argument("--runs", type=int, default=7)
parser.add_argument("--no-pin", action="store_true", help="else both run on the first N usable cores, N the threads")


def side_by_side(options: argparse.Namespace, threads: int) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))[:threads] if not options.no_pin else ()
    own = {"model": options.model, "threads": threads, "kernels": options.kernels, "kv": options.kv}
    peer = {
        "model": str(options.gguf),
        "threads": threads,
        "context": options.prompt_tokens + options.new_tokens,
        "kv": options.peer_kv,
        "flash_attn": options.peer_flash_attn,
    }
    script = Path(__file__).with_name("llama_cpp_child.py")
    with Child(own_command(), own, cores) as ours, Child([options.peer_python, str(script)], peer, cores) as theirs:
        prompt = prompt_ids(ours.about["vocab_size"], options.prompt_tokens)
        print(f"{threads} threads: {options.runs + 1} pairs of answers", file=sys.stderr)
        found = compare(ours, theirs, prompt, options.new_tokens, options.runs)
        return {
            "threads": threads,
            "cores": list(cores),
            "peer": f"llama-cpp-python {theirs.about['version']}",
            **found,
        }


async def half_echoes() -> dict[str, Any]:
    """Microseconds of half a round trip over each bare library: the floor of a hop."""
    found = {}
    for library in usable(LIBRARIES):
        async with echo_process("bare", library) as (url, _):
            times = await bare_round_trips(library, url, ECHO_BYTES, ECHO_ROUNDS)
        found[library] = spread([1e6 * seconds / 2 for seconds in times], 1)
    return found


def main() -> None:
    options = parser.parse_args()
    bandwidth = read_bandwidth()
    floor_tok_s = 1e9 * bandwidth["median"] / options.gguf.stat().st_size
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        echoes = runner.run(half_echoes())
    result = {
        "bench": "peers",
        "machine": machine(),
        "gguf": options.gguf.name,
        "kernels": options.kernels,
        "kv": options.kv,
        "peer_kv": options.peer_kv,
        "peer_flash_attn": options.peer_flash_attn,
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": options.new_tokens,
        "read_gb_s": bandwidth,
        "decode_tok_s_at_read_gb_s": round(floor_tok_s, 1),
        "half_echo_us": echoes,
        "threads": [side_by_side(options, threads) for threads in options.threads],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
