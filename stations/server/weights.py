"""The model a station starts with: from the cache, and what is missing there from other stations over af40."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from aeonflow import Hello, Link, connect
from aeonflow.messages import PROTOCOL_VERSION

from ..models.errors import MissingWeightsError, ModelNotFoundError
from ..models.fetch import fetch_bundle, fetch_missing
from ..models.folder import ModelFolder
from ..models.partial import begin_folder
from ..models.roles import RoleSpan, all_roles, parse_roles
from ..models.store import ModelStore
from .options import StationOptions
from .tls import client_tls

SHOWN_FILES = 4  # of the missing ones, in an error


async def obtain_model(options: StationOptions, store: ModelStore) -> tuple[ModelFolder, tuple[RoleSpan, ...]]:
    """The folder with every weight file of the station's roles, fetched where `--weights-from` says.

    Raises ModelNotFoundError, MissingWeightsError naming files, or what went wrong on the way to the other stations.
    """
    folder = _open(options, store)
    if folder is not None:
        spans = _spans(options, folder)
        missing = folder.missing(spans)
        if not missing:
            return folder, spans
        if not options.weights_from:
            names = ", ".join(entry.name for entry in missing[:SHOWN_FILES])
            more = f" and {len(missing) - SHOWN_FILES} more" if len(missing) > SHOWN_FILES else ""
            raise MissingWeightsError(
                f"{folder.path} lacks {names}{more} for {', '.join(map(str, spans))}; --weights-from URL fetches them"
            )
    async with AsyncExitStack() as stack:
        links = await _connect(options, stack)
        if folder is None:
            folder = begin_folder(await fetch_bundle(links[0]), store.path(options.model))
            spans = _spans(options, folder)
        await fetch_missing(links, folder, spans)
    return folder, spans


def _open(options: StationOptions, store: ModelStore) -> ModelFolder | None:
    try:
        return store.open(options.model)
    except ModelNotFoundError:
        if not options.weights_from:
            raise
        return None


def _spans(options: StationOptions, folder: ModelFolder) -> tuple[RoleSpan, ...]:
    layers = folder.card.num_layers
    return parse_roles(options.roles, layers) if options.roles else all_roles(layers)


async def _connect(options: StationOptions, stack: AsyncExitStack) -> Sequence[Link]:
    """Links with the fleet's secret: weights are not served to holders of a station key."""
    hello = Hello(protocol=PROTOCOL_VERSION, name=options.name, kind="station")
    links = await asyncio.gather(
        *(
            connect(url, hello=hello, token=options.token, transport=options.transport, ssl=client_tls(options, url))
            for url in options.weights_from
        )
    )
    for link in links:
        stack.push_async_callback(link.close)
    return links
