"""``POST /v1/chat/completions`` and ``/v1/completions``: from a request to an answer, whole or as a stream."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from molt.core.engine_protocol import Request as Generation
from molt.errors import InputError
from molt.server.answer import Answer, AnswerEvent, AnswerRecord, AnswerText, Broken, End, FlopsSaved, Part
from molt.server.body import read_body, until_disconnect
from molt.server.bridge import Bridge, ServedTenant
from molt.server.chunks import DONE, Form, error_body, event, new_id
from molt.server.error_answers import ErrorAnswer
from molt.server.keep_alive import kept_alive
from molt.server.prompts import Prompter, PromptTooLong
from molt.server.request_bodies import AnswerRequest, BadRequest, ChatRequest, CompletionRequest, parse

DEFAULT_TEMPERATURE, DEFAULT_TOP_P = 1.0, 1.0
"""Defaults of a request without them, as in OpenAI's API."""

ALIAS = "molt"
"""A name of the model beside the ladder's."""

TOO_LONG = "context_length_exceeded"
"""OpenAI's code where a prompt, or what it asks for, does not fit into the context."""

TOKENISING_THREADS = 2
_TOKENISING = ThreadPoolExecutor(TOKENISING_THREADS, "tokenising")
_STATUS = {"shutting_down": 503, "timeout": 504}


@dataclass(frozen=True, slots=True)
class Answering:
    """The handlers of the two completion routes."""

    bridge: Bridge
    prompter: Prompter
    flops_saved: FlopsSaved
    strict: bool = False

    @property
    def models(self) -> tuple[str, str]:
        """The names of the model."""
        return self.bridge.ladder.name, ALIAS

    async def chat(self, request: Request) -> Response:
        """Answer a chat."""
        body = await self._body(request, ChatRequest)
        ids = await self._prompt(lambda: self.prompter.chat([m.turn for m in body.messages]), "messages")
        return await self._answer(request, body, ids)

    async def text(self, request: Request) -> Response:
        """Continue a text."""
        body = await self._body(request, CompletionRequest)
        prompt = body.prompt
        tokenise = self.prompter.text if isinstance(prompt, str) else self.prompter.tokens
        return await self._answer(request, body, await self._prompt(lambda: tokenise(prompt), "prompt"))  # type: ignore[arg-type]

    async def _body(self, request: Request, model: type[Any]) -> Any:
        body = parse(model, await read_body(request.scope, request.receive, self.bridge.limits))
        if body.model not in self.models:
            raise ErrorAnswer(
                404, f"no such model; this server has {self.models[0]!r}", "model_not_found", "model"
            )
        if self.strict and body.ignored:
            raise BadRequest(
                f"{body.ignored[0]}: this server would ignore it, and is strict", body.ignored[0]
            )
        return body

    async def _prompt(self, tokenise: Any, param: str) -> tuple[int, ...]:
        try:
            return await asyncio.get_running_loop().run_in_executor(_TOKENISING, tokenise)
        except InputError as error:
            code = TOO_LONG if isinstance(error, PromptTooLong) else None
            raise BadRequest(f"{param}: {error}", param, code) from None

    async def _answer(self, request: Request, body: AnswerRequest, ids: tuple[int, ...]) -> Response:
        is_chat = isinstance(body, ChatRequest)
        generation = self._generation(body, ids)
        form = Form(is_chat, self.models[0], body.with_usage, id=new_id(is_chat=is_chat))
        answer = Answer(len(ids), body.stops, self.flops_saved, may_begin_anew=not body.stream)
        tenant = self.bridge.ask(form.id, body.molt.kind, generation)
        about = {"seed": generation.seed, "ignored": body.ignored}
        delivery = Delivery(self.bridge, tenant, answer, form, about)
        if body.stream:
            return EventStream(delivery)
        try:
            whole = await until_disconnect(request.receive, delivery.whole())
        finally:
            self.bridge.leave(tenant)
        if whole is None:
            raise ClientDisconnect
        return JSONResponse(whole)

    def _generation(self, body: AnswerRequest, ids: tuple[int, ...]) -> Generation:
        """The request to the engine; ``BadRequest`` if the answer does not fit into the context."""
        room = self.prompter.tokens_max + 1 - len(ids)
        wanted = body.tokens_wanted
        if wanted is not None and wanted > room:
            param = "max_tokens" if body.max_tokens == wanted else "max_completion_tokens"
            raise BadRequest(
                f"{param}: must be at most {room} after a prompt of {len(ids)} tokens", param, TOO_LONG
            )
        return Generation(
            prompt_ids=ids,
            max_tokens=min(self.bridge.limits.answer_tokens, room) if wanted is None else wanted,
            stop_at_eos=not body.molt.ignore_eos,
            temperature=DEFAULT_TEMPERATURE if body.temperature is None else body.temperature,
            top_p=DEFAULT_TOP_P if body.top_p is None else body.top_p,
            seed=secrets.randbelow(2**31) if body.seed is None else body.seed,
            top_k=max(0, body.top_k or 0),
            min_p=body.min_p or 0.0,
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """One answer on its way from the world to the client; ``about`` goes into its summary."""

    bridge: Bridge
    tenant: ServedTenant
    answer: Answer
    form: Form
    about: Mapping[str, Any]

    async def parts(self) -> AsyncIterator[Part]:
        """The parts of the answer, each as soon as it is there; the last is an ``End`` or ``Broken``."""
        deadline_s = asyncio.get_running_loop().time() + self.bridge.limits.answer_s
        while True:
            record = await self._next_record(deadline_s)
            for part in [record] if isinstance(record, Broken) else self.answer.observe(record):
                yield part
                if isinstance(part, End | Broken):
                    return

    async def _next_record(self, deadline_s: float) -> AnswerRecord | Broken:
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self.tenant.records.get()
        except TimeoutError:
            return Broken(f"answer not complete within {self.bridge.limits.answer_s:.0f} s", "timeout")

    async def whole(self) -> dict[str, Any]:
        """The whole answer as one object; ``ErrorAnswer`` if it breaks."""
        async for part in self.parts():
            match part:
                case End():
                    self.bridge.leave(self.tenant, part.reason)
                    return self.form.whole(part.reason, self.answer, self.about)
                case Broken():
                    raise ErrorAnswer(_STATUS.get(part.code, 500), part.message, part.code)
        raise AssertionError("an answer ends")

    async def chunks(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        for chunk in self.form.begin():
            yield event(chunk)
        async for part in self.parts():
            match part:
                case AnswerText():
                    yield event(self.form.text(part))
                case AnswerEvent():
                    yield event(self.form.answer_event(part))
                case End():
                    self.bridge.leave(self.tenant, part.reason)
                    for chunk in self.form.end(part.reason, self.answer, self.about):
                        yield event(chunk)
                case Broken():
                    molt = {**self.answer.summary(), "event": "broken", **self.about}
                    yield event({**error_body(part.message, "server_error", part.code), "molt": molt})
        yield DONE


class EventStream(Response):
    """An answer, sent while it is produced. A client that disconnects before its end frees the tenant's memory."""

    media_type = "text/event-stream"

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send(send))
        finally:
            self._delivery.bridge.leave(self._delivery.tenant)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        chunks = kept_alive(self._delivery.chunks(), self._delivery.bridge.limits.ping_s)
        async with aclosing(chunks):
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
