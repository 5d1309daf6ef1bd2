"""`bench wire`: frames a second packed and decoded, and over a socket with the batcher off and on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from aeonflow import Flags, FlowSendBatcher, Frame, FrameDecoder, Link, Message, connect
from aeonflow.bands import ATTN, TRACES
from aeonflow.errors import AeonflowError
from aeonflow.frames import pack_header

from .echo import LIBRARIES, START_TIMEOUT_S, echo_process, hello, link_round_trips, usable
from .measure import machine, spread

PAYLOADS = (64, 2352, 14_336)  # a small control message; a row of 576 with its prefix; a row of 3,584
BURST = 16  # frames queued in one turn of the event loop, as by a station that serves many sessions
RUN_S = 0.2
RUN_TIMEOUT_S = 60.0
DELAYED_ROUNDS = 100


async def bench_wire(
    *,
    payloads: Sequence[int] = PAYLOADS,
    libraries: Sequence[str] = LIBRARIES,
    runs: int = 5,
    run_s: float = RUN_S,
    link_delay_ms: float | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Frames a second: packed and decoded in memory, then received by another process over each library.

    `run_s`: about how long one run takes; `link_delay_ms`: also measure the delay a link obtains for it; `progress` is
    told what begins. What reaches a limit is in `failed`, with its limit, beside all that was measured.
    """
    libraries = usable(libraries)
    progress(f"codec, frames of {', '.join(map(str, payloads))} bytes")
    codec = {str(size): _codec(size, runs, run_s) for size in payloads}
    batcher: dict[str, Any] = {library: {} for library in libraries}
    delays: dict[str, Any] = {}
    failed: list[str] = []
    for library in libraries:
        for size in payloads:
            progress(f"{library}, frames of {size} bytes")
            try:
                batcher[library][str(size)] = await _batcher(library, size, runs, run_s)
            except (TimeoutError, AeonflowError) as error:
                failed.append(f"{library}, frames of {size} bytes: {_why(error)}")
        if link_delay_ms is not None:
            try:
                delays[library] = await _delay(library, link_delay_ms / 1000)
            except (TimeoutError, AeonflowError) as error:
                failed.append(f"{library}, a link with {link_delay_ms:g} ms of delay: {_why(error)}")
    result: dict[str, Any] = {"bench": "wire", "machine": machine(), "codec": codec, "batcher": batcher}
    if link_delay_ms is not None:
        result["link_delay"] = delays
    return result | {"failed": failed}


def _why(error: Exception) -> str:
    """Waits that reach a limit without words of their own are starts and ends of the other process."""
    return str(error) or f"the other process has not started, answered or ended within {START_TIMEOUT_S:g} s"


def _codec(size: int, runs: int, run_s: float) -> dict[str, Any]:
    payload = bytes(size)
    frame = Frame(ATTN, 7, Flags.FIN, payload)
    packed = frame.pack()
    wire = packed * BURST
    decoder = FrameDecoder()
    sink = FlowSendBatcher(_drop)

    def batched() -> None:
        for _ in range(BURST):
            sink.send_frame(packed)
        sink.flush()

    actions: dict[str, tuple[Callable[[], object], int]] = {
        "pack": (frame.pack, 1),
        "header": (lambda: pack_header(ATTN, 7, Flags.FIN, size), 1),
        "decode": (lambda: decoder.feed(wire), BURST),
        "batch": (batched, BURST),
    }
    rates: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(runs):
        for name, (action, frames) in actions.items():
            rates[name].append(frames * _calls_per_second(action, run_s))
    return {f"{name}_frames_s": spread(values, 0) for name, values in rates.items()}


def _drop(message: object) -> None:
    """A socket that takes everything and keeps nothing."""


def _calls_per_second(action: Callable[[], object], run_s: float) -> float:
    count, elapsed = 1, 0.0
    while True:
        start = time.perf_counter()
        for _ in range(count):
            action()
        elapsed = time.perf_counter() - start
        if elapsed >= run_s / 2:
            return count / elapsed
        count *= 2 if elapsed < run_s / 8 else max(2, round(run_s / elapsed))


async def _batcher(library: str, size: int, runs: int, run_s: float) -> dict[str, Any]:
    """Frames a second through a socket into another process, in bursts, with coalescing off and on in turn."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    frames_per_message = {False: 1.0, True: 1.0}
    async with echo_process("link", library) as (url, token):
        links = {}
        for coalesce in rates:
            links[coalesce] = await connect(
                url, hello=hello("bench"), token=token, transport=library, coalesce=coalesce
            )
        try:
            count = BURST * 8
            for _ in range(12):  # grow the run until it takes long enough
                took = await _send_counted(links[False], size, count)
                if took >= run_s / 2:
                    break
                count *= 2
            for _ in range(runs):
                for coalesce, link in links.items():
                    frames, messages = link.stats.frames_sent, link.stats.messages_sent
                    rates[coalesce].append(count / await _send_counted(link, size, count))
                    frames_per_message[coalesce] = (link.stats.frames_sent - frames) / (
                        link.stats.messages_sent - messages
                    )
        finally:
            for link in links.values():
                await link.close()
    off, on = spread(rates[False], 0), spread(rates[True], 0)
    return {
        "off_frames_s": off,
        "on_frames_s": on,
        "gain": round(on["median"] / off["median"], 2),
        "frames_per_message": round(frames_per_message[True], 2),
    }


async def _send_counted(link: Link, size: int, count: int) -> float:
    """Seconds from the first frame sent until the other process has said that all `count` have come."""
    done = asyncio.get_running_loop().create_future()
    payload = bytes(size)

    def on_message(message: Message) -> None:
        if not done.done():
            done.set_result(time.perf_counter())

    link.on_message = on_message
    start = time.perf_counter()
    link.send(TRACES, 0, count.to_bytes(8, "big"))
    for index in range(1, count + 1):
        link.send(TRACES, index, payload)
        if index % BURST == 0:
            await asyncio.sleep(0)  # the end of a turn of the loop
            await link.drain(RUN_TIMEOUT_S)
    try:
        async with asyncio.timeout(RUN_TIMEOUT_S):
            return float(await done) - start
    except TimeoutError:
        raise TimeoutError(f"{count} frames in a row have not all come within {RUN_TIMEOUT_S:g} s") from None


async def _delay(library: str, delay_s: float) -> dict[str, Any]:
    """The one-way delay that a delayed link obtains, as it measures it itself, over messages sent one by one."""
    async with echo_process("link", library) as (url, token):
        link = await connect(url, hello=hello("bench"), token=token, transport=library, link_delay_s=delay_s)
        try:
            await link_round_trips(link, PAYLOADS[1], DELAYED_ROUNDS)
            stats = link.stats
            obtained_ms = 1000 * stats.delay_obtained_s / stats.delayed_messages
        finally:
            await link.close()
    return {"asked_ms": delay_s * 1000, "obtained_ms": round(obtained_ms, 3), "messages": stats.delayed_messages}
