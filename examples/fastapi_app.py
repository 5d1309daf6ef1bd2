"""An engine inside a FastAPI application: started and stopped by the lifespan, answers streamed as server-sent events.

    pip install fastapi uvicorn
    AEONFLOW_MODEL=smollm2 AEONFLOW_PLAN=layers:2 uvicorn --app-dir examples fastapi_app:app
    curl -N localhost:8000/generate -H 'content-type: application/json' -d '{"prompt": "Hello! Who are you?"}'

Several requests run side by side in the one engine. A client that leaves cancels its answer at every station.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from aeonflow.errors import AeonflowError
from host import Engine
from host.errors import InvalidRequestError
from host.generate import Generation


class Ask(BaseModel):
    """What a client may ask for; the engine checks the numbers."""

    prompt: str | list[dict[str, str]]
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: list[str] = []


def make_app(**launch_options: Any) -> FastAPI:
    """The application; `launch_options` are the keywords of `Engine.launch`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Engine.launch(**launch_options) as engine:
            app.state.engine = engine
            yield

    app = FastAPI(title="aeonflow in FastAPI", lifespan=lifespan)

    @app.get("/status")
    async def status(request: Request) -> dict[str, Any]:
        found: dict[str, Any] = await request.app.state.engine.status()
        return found

    @app.post("/generate")
    async def generate(ask: Ask, request: Request) -> StreamingResponse:
        engine: Engine = request.app.state.engine
        try:
            options = ask.model_dump()
            generation = engine.generate(options.pop("prompt"), **options)
        except InvalidRequestError as error:
            raise HTTPException(400, detail={"type": error.code, "message": str(error)}) from error
        return StreamingResponse(events(generation), media_type="text/event-stream")

    return app


async def events(generation: Generation) -> AsyncIterator[str]:
    """One event a chunk; the last one carries the counts, or the error that ended the answer."""
    try:
        async for chunk in generation:
            if chunk.text:
                yield event({"text": chunk.text})
        result = generation.result
        counts = {"prompt_tokens": result.usage.prompt_tokens, "completion_tokens": result.usage.completion_tokens}
        yield event({"finish_reason": result.finish_reason, "usage": counts})
    except AeonflowError as error:
        yield event({"error": {"type": error.code, "message": str(error)}})
    finally:
        generation.cancel()  # a client that left must not keep the stations busy


def event(fields: dict[str, Any]) -> str:
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n"


app = make_app(model=os.environ.get("AEONFLOW_MODEL", "smollm2"), plan=os.environ.get("AEONFLOW_PLAN", "solo"))
