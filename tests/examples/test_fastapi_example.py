from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import psutil
import pytest
from fastapi import FastAPI

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLES / "fastapi_app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://example") as client:
            yield client


async def ask(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    events = []
    async with client.stream("POST", "/generate", json=fields) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
    return events


async def test_answers_are_streamed_side_by_side_and_bad_requests_get_400(
    example: ModuleType, tiny_model: Path
) -> None:
    app = example.make_app(model=str(tiny_model), plan="solo", kernels="reference")
    async with client_of(app) as client:
        alone = [await ask(client, prompt=prompt, max_tokens=8) for prompt in ("one", "two")]
        together = await asyncio.gather(*(ask(client, prompt=prompt, max_tokens=8) for prompt in ("one", "two")))
        assert ["".join(e.get("text", "") for e in events) for events in together] == [
            "".join(e.get("text", "") for e in events) for events in alone
        ]
        for events in alone:
            assert events[-1]["finish_reason"] in ("length", "stop")
            assert events[-1]["usage"]["completion_tokens"] <= 8
        refused = await client.post("/generate", json={"prompt": "x", "max_tokens": 0})
        assert refused.status_code == 400
        assert "max_tokens 0" in refused.json()["detail"]["message"]
        status = (await client.get("/status")).json()
        assert [station["name"] for station in status["stations"]] == ["solo"]


async def test_the_application_runs_a_fleet_and_takes_it_down(example: ModuleType, tiny_model: Path) -> None:
    app = example.make_app(model=str(tiny_model), plan="layers:2", kernels="reference")
    async with client_of(app) as client:
        events = await ask(client, prompt="one", max_tokens=4)
        assert events[-1]["usage"]["completion_tokens"] <= 4
        pids = [station["pid"] for station in (await client.get("/status")).json()["stations"]]
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
