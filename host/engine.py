"""The engine: one model over its stations, to be embedded in any asyncio program.

    async with Engine.launch(model="smollm2", plan="trisplit") as engine:
        async for chunk in engine.generate("Hello! Who are you?"):
            print(chunk.text, end="")

It owns its links and, when it launched them, its stations: leaving the block leaves no process and no task. It has no
event loop of its own and no global state; several engines may live side by side.
"""

from __future__ import annotations

import ssl as ssl_module
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Unpack

from .card import HostCard
from .decode import Decoder, Outbox
from .errors import EngineClosedError
from .fleet.state import FleetState
from .generate import Generation, Seat, Setting
from .kv_options import KvKeywords, make_kv_options
from .launch import (
    ConnectOptions,
    LaunchOptions,
    addresses,
    connected_stations,
    given_or_fleet,
    launched_stations,
)
from .network import Network
from .pace import Pace
from .pairx import PairX
from .pairx.gate_file import coalesces_by_default
from .prefill import Window
from .request import GenerateOptions, Prompt, Request, make_request
from .running import make_network, running
from .sequence import TokenSequence
from .session import OneAnswer, Session
from .speculate.drafters import Drafters
from .speculate.policy import Proposer
from .status import engine_status

DEADLINE_S = 60.0  # without any progress of a session; slow machines need seconds for a long prefill chunk
REJOIN_S = 20.0  # how long a new request waits for a lost station to come back
PROBE_S, PROBE_FACTOR = 5.0, 20.0  # patience of `status` with its probe: so long, or so often what a token takes


class Engine:
    """Made by `launch` or `connect`. All methods belong to the event loop's thread."""

    def __init__(
        self,
        network: Network,
        *,
        name: str,
        prefill_chunk: int | None,
        rejoin_s: float,
        pace: Pace,
        drafters: Drafters,
        describe_setting: Callable[[Network], Setting],
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.network = network
        self.rejoin_s = rejoin_s
        self.clock = clock
        self._prefill_chunk = prefill_chunk
        self._describe = describe_setting
        self._pace = pace
        self.drafters = drafters
        self._described: tuple[int, Setting] | None = None
        self._decoders: set[Decoder] = set()

    # Making one.

    @classmethod
    @asynccontextmanager
    async def launch(
        cls,
        *,
        model: str = "smollm2",
        plan: str = "solo",
        route: str = "chain",
        kernels: str = "fast",
        threads: int | None = None,
        transport: str = "auto",
        coalesce: bool | None = None,
        link_delay_ms: float = 0.0,
        pair_x: str = "off",
        pair_x_layers: str | None = None,
        pair_x_seed: str | None = None,
        speculate: str = "off",
        volumes: str = "off",
        prefill_chunk: int | None = None,
        token: str | None = None,
        exact: bool = False,
        name: str | None = None,
        deadline_s: float = DEADLINE_S,
        rejoin_s: float = REJOIN_S,
        trace: str | Path | None = None,
        **kv: Unpack[KvKeywords],
    ) -> AsyncIterator[Engine]:
        """Start the stations of `plan` for `model`, and stop them at the end of the block.

        `plan`: a preset (`solo`, `layers:N`, `trisplit`, `trisplit:per-layer`, suffix `+shards=N`) or the path of a
        TOML file; `threads` None: 1 a station, in solo the usable cores, at most 8; `coalesce` None: on, unless
        `aeonflow bench gate` found that it does not pay here; `exact`: refuse whatever makes the result depend on the
        cut; `deadline_s`: without any progress a generation fails, naming the station that holds it up; `rejoin_s`:
        how long a new request waits for a lost station; `speculate`: off, lookup, model:NAME or auto
        (`docs/speculation.md`); `trace`: a file for a Chrome trace of every hop, written at
        the end of the block (`docs/tracing.md`). Raises PlanError, InvalidRequestError, StationStartError,
        UnsupportedOptionError before anything is left running.
        """
        options = LaunchOptions(
            model=model,
            plan=str(plan),
            route=route,
            kernels=kernels,
            threads=threads,
            transport=transport,
            coalesce=coalesces_by_default() if coalesce is None else coalesce,
            link_delay_ms=link_delay_ms,
            pair_x=PairX.asked(pair_x, pair_x_layers, pair_x_seed, kv),
            kv=make_kv_options(**kv),
            approximate=kv.get("approximate", False),
            speculate=speculate,
            volumes=volumes,
            prefill_chunk=prefill_chunk,
            token=token,
            exact=exact,
            name=name,
            deadline_s=deadline_s,
            rejoin_s=rejoin_s,
        )
        options.check()
        async with AsyncExitStack() as stack:
            network = make_network(options)
            stations = await launched_stations(options, network, stack)
            async with running(cls, network, stations, options, trace, stack) as engine:
                yield engine

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        urls: str | Sequence[str] | FleetState,
        *,
        token: str | None = None,
        route: str = "chain",
        transport: str | None = None,
        coalesce: bool | None = None,
        link_delay_ms: float | None = None,
        pair_x: str = "off",
        pair_x_layers: str | None = None,
        pair_x_seed: str | None = None,
        speculate: str = "off",
        prefill_chunk: int | None = None,
        exact: bool = False,
        name: str | None = None,
        ssl: ssl_module.SSLContext | None = None,
        deadline_s: float = DEADLINE_S,
        rejoin_s: float = REJOIN_S,
        trace: str | Path | None = None,
        **kv: Unpack[KvKeywords],
    ) -> AsyncIterator[Engine]:
        """Connect to stations that run: their addresses (ws://…, wss://…) or a fleet's state. They run on afterwards.

        `token` is the fleet's secret. By default it, `transport`, `coalesce` and `link_delay_ms` are those of the
        fleet's state; without one "auto", True and 0. Raises AuthenticationError, LinkClosedError,
        VersionMismatchError for stations of different models, PlanError naming what no station carries, FleetError
        naming stations of the state that do not run.
        """
        fleet = urls if isinstance(urls, FleetState) else None
        options = ConnectOptions(
            urls=addresses(urls),
            fleet=fleet,
            token=given_or_fleet("token", token, fleet, None),
            route=route,
            transport=given_or_fleet("transport", transport, fleet, "auto"),
            coalesce=given_or_fleet("coalesce", coalesce, fleet, True),
            link_delay_ms=given_or_fleet("link_delay_ms", link_delay_ms, fleet, 0.0),
            pair_x=PairX.asked(pair_x, pair_x_layers, pair_x_seed, kv),
            kv=make_kv_options(**kv),
            approximate=kv.get("approximate", False),
            speculate=speculate,
            prefill_chunk=prefill_chunk,
            exact=exact,
            name=name,
            deadline_s=deadline_s,
            rejoin_s=rejoin_s,
            ssl=ssl,
        )
        options.check()
        network = make_network(options)
        stations = connected_stations(options, network)
        async with (
            AsyncExitStack() as stack,
            running(cls, network, stations, options, trace, stack) as engine,
        ):
            yield engine

    # Using it.

    @property
    def card(self) -> HostCard:
        """The model, as the embed station serves it."""
        return self.network.bundle.card

    @property
    def max_positions(self) -> int:
        """Positions of the longest session: the context, more where old rows leave the caches."""
        return self.network.kv.max_positions(self.card.context_length)

    @property
    def token_s(self) -> float:
        """Seconds that one row takes through all stations, as far as it is known."""
        return self._pace.token_s

    @property
    def probe_timeout_s(self) -> float:
        """How long `status` waits for its probe token before it says that the fleet is not ready."""
        return min(self.network.deadline_s, max(PROBE_S, PROBE_FACTOR * self.token_s))

    @property
    def setting(self) -> Setting:
        """Plan, route, kernels, transport, exactness: what every result says of how it was made."""
        route = self.network.route.route
        if self._described is None or self._described[0] != route:  # a station that came back may be another
            self._described = (route, self._describe(self.network))
        return self._described[1]

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Generation:
        """One answer to a text, chat messages ({role, content}) or token ids, as an async iterator of chunks.

        Options: max_tokens=256, temperature=0, top_k=0, top_p=1, min_p=0, seed=None, stop=None, raw=False,
        ignore_eos=False, logprobs=None, logits_hash=False, prefill_chunk=None. A text gets the chat template unless
        `raw`. Raises InvalidRequestError, with the value and what is allowed, before any station hears of it.
        """
        return self.make_generation(OneAnswer(self), self.make_request(prompt, options))

    def session(self) -> Session:
        """A conversation whose KV stays at the stations between turns."""
        return Session(self)

    def tokenize(self, text: str, *, raw: bool = True) -> list[int]:
        """Token ids of a text, as a prompt would be encoded: as it stands, or through the chat template (raw=False)."""
        return self.network.bundle.text.encode_prompt(text, raw=raw)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        return self.network.bundle.text.tokenizer.decode(ids)

    async def status(self) -> dict[str, Any]:
        """Stations, readiness by a probe token sent now, counters: see `host/status.py`."""
        if self.network.is_closed:
            raise EngineClosedError("the engine has been left")
        return await engine_status(self)

    # What sessions and generations ask.

    def make_request(self, prompt: Prompt, options: GenerateOptions) -> Request:
        """The checked request, with the engine's own prefill chunk where none is given."""
        if self._prefill_chunk is not None and options.get("prefill_chunk") is None:
            options["prefill_chunk"] = self._prefill_chunk
        text, limit = self.network.bundle.text, self.max_positions
        return make_request(text, limit, self.card.vocab_size, prompt, **options)

    def make_generation(self, seat: Seat, request: Request) -> Generation:
        """A generation that has not begun."""
        return Generation(seat, request, lambda: self.setting, self.clock)

    async def open_sequence(self, num_positions: int) -> TokenSequence:
        """A session on every station, once all of them are there."""
        await self.network.wait_ready(self.rejoin_s)
        return await self.network.open(num_positions)

    def start(
        self,
        request: Request,
        sequence: TokenSequence,
        outbox: Outbox,
        on_end: Callable[[], None],
        proposer: Proposer | None,
    ) -> Decoder:
        """Start the step loop of a generation on a session that holds the first rows of its prompt."""

        def ended() -> None:
            self._pace.learn(decoder, alone=self._decoders == {decoder})
            self._decoders.discard(decoder)
            if proposer is not None:
                proposer.close()
            on_end()

        def window() -> Window:
            num_rows = max(1, len(request.prompt_ids) - len(sequence.tokens))
            max_rows = min((s.hello.limits.max_rows or num_rows for s in self.network.stations), default=num_rows)
            max_rows = min(max_rows, self.network.seeding.max_rows(self.card.hidden_size) or max_rows)
            return self._pace.window(num_rows, request.prefill_chunk, max_rows)

        text = self.network.bundle.text
        context = request.prompt_ids if request.is_continuation else ()
        decoder = Decoder(
            request,
            sequence,
            text.stream(stops=request.stops, context=context),
            outbox,
            means=self.drafters.means(proposer, can_pipeline=sequence.kv.o1 is None),
            max_rows=self.drafters.max_rows,
            cap=lambda: self._prefill_cap(decoder),
            mend=lambda e: self.network.mend(sequence, e, lambda: decoder.resumed(window()), decoder.fail),
            clock=self.clock,
            on_end=ended,
        )
        self._decoders.add(decoder)
        try:
            decoder.start(window())
        except BaseException as error:
            decoder.fail(error)
            raise
        return decoder

    def _prefill_cap(self, decoder: Decoder) -> int | None:
        """The most rows of a prefill chunk now: bounded while another generation waits for its next token."""
        if decoder.request.prefill_chunk is None and any(d.is_decoding for d in self._decoders if d is not decoder):
            return self._pace.cap()
        return None
