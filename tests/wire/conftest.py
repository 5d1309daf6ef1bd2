"""The conformance suite of the transports runs on asyncio's event loop and on uvloop, the rest on asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

ON_BOTH_LOOPS = "test_wire_transports"


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if ON_BOTH_LOOPS in item.nodeid:
        loops["uvloop"] = uvloop.new_event_loop
    return loops
