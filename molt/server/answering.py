"""``POST /v1/chat/completions`` and ``/v1/completions``: from a request to an answer, in one piece or as it comes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from molt.core.engine_protocol import Request as Generation
from molt.errors import InputError
from molt.server.answer import Answer, AnswerEvent, AnswerRecord, AnswerText, Broken, End, FlopsSaved, Part
from molt.server.body import read_body, until_gone
from molt.server.bridge import Bridge, ServedTenant
from molt.server.chunks import DONE, Form, error_body, event, new_id
from molt.server.error_answers import ErrorAnswer
from molt.server.prompts import Prompter
from molt.server.request_bodies import AnswerRequest, BadRequest, ChatRequest, CompletionRequest, parse

TEMPERATURE, TOP_P = 1.0, 1.0
"""Of a request that does not say; so it is in OpenAI's API."""

ALIAS = "molt"
"""What the model may be called beside the ladder's name."""

TOKENISING_THREADS = 2
_TOKENISING = ThreadPoolExecutor(TOKENISING_THREADS, "tokenising")
_STATUS = {"shutting_down": 503, "timeout": 504}


@dataclass(frozen=True, slots=True)
class Answering:
    """Everything that answers are made with."""

    hub: Bridge
    prompter: Prompter
    flops_saved: FlopsSaved

    @property
    def models(self) -> tuple[str, str]:
        """What the model may be called."""
        return self.hub.ladder.name, ALIAS

    async def chat(self, request: Request) -> Response:
        """A chat."""
        asked = await self._asked(request, ChatRequest)
        ids = await self._prompt(lambda: self.prompter.chat([m.turn for m in asked.messages]), "messages")
        return await self._answer(request, asked, ids)

    async def text(self, request: Request) -> Response:
        """A text to go on with."""
        asked = await self._asked(request, CompletionRequest)
        prompt = asked.prompt
        tokenise = self.prompter.text if isinstance(prompt, str) else self.prompter.tokens
        return await self._answer(request, asked, await self._prompt(lambda: tokenise(prompt), "prompt"))  # type: ignore[arg-type]

    async def _asked(self, request: Request, model: type[Any]) -> Any:
        asked = parse(model, await read_body(request.scope, request.receive, self.hub.limits))
        if asked.model not in self.models:
            raise ErrorAnswer(404, f"no such model; there is {self.models[0]!r}", "model_not_found", "model")
        return asked

    async def _prompt(self, tokenise: Any, param: str) -> tuple[int, ...]:
        try:
            return await asyncio.get_running_loop().run_in_executor(_TOKENISING, tokenise)
        except InputError as error:
            raise BadRequest(f"{param}: {error}", param) from None

    async def _answer(self, request: Request, asked: AnswerRequest, ids: tuple[int, ...]) -> Response:
        is_chat = isinstance(asked, ChatRequest)
        generation = self._generation(asked, ids)
        form = Form(is_chat, self.models[0], asked.with_usage, id=new_id(is_chat=is_chat))
        answer = Answer(len(ids), asked.stops, self.flops_saved, may_begin_anew=not asked.stream)
        tenant = self.hub.ask(form.id, asked.molt.kind, generation)
        telling = Telling(self.hub, tenant, answer, form, generation.seed)
        if asked.stream:
            return EventStream(telling)
        try:
            whole = await until_gone(request.receive, telling.whole())
        finally:
            self.hub.leave(tenant)
        if whole is None:
            raise ClientDisconnect
        return JSONResponse(whole)

    def _generation(self, asked: AnswerRequest, ids: tuple[int, ...]) -> Generation:
        """What is asked of the engine; ``BadRequest`` if the answer does not fit the context."""
        room = self.prompter.tokens_max + 1 - len(ids)
        wanted = asked.tokens_wanted
        if wanted is not None and wanted > room:
            param = "max_tokens" if asked.max_tokens == wanted else "max_completion_tokens"
            raise BadRequest(f"{param}: after a prompt of {len(ids)} tokens, at most {room}", param)
        return Generation(
            prompt_ids=ids,
            max_tokens=min(self.hub.limits.answer_tokens, room) if wanted is None else wanted,
            stop_at_eos=not asked.molt.ignore_eos,
            temperature=TEMPERATURE if asked.temperature is None else asked.temperature,
            top_p=TOP_P if asked.top_p is None else asked.top_p,
            seed=secrets.randbelow(2**31) if asked.seed is None else asked.seed,
        )


@dataclass(frozen=True, slots=True)
class Telling:
    """One answer on its way from the world to the client."""

    hub: Bridge
    tenant: ServedTenant
    answer: Answer
    form: Form
    seed: int

    async def parts(self) -> AsyncIterator[Part]:
        """The parts of the answer as they come; the last is an ``End`` or ``Broken``."""
        deadline_s = asyncio.get_running_loop().time() + self.hub.limits.answer_s
        while True:
            heard = await self._heard(deadline_s)
            for part in [heard] if isinstance(heard, Broken) else self.answer.hear(heard):
                yield part
                if isinstance(part, End | Broken):
                    return

    async def _heard(self, deadline_s: float) -> AnswerRecord | Broken:
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self.tenant.records.get()
        except TimeoutError:
            return Broken(f"not complete within {self.hub.limits.answer_s:.0f} s", "timeout")

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece; ``ErrorAnswer`` if it breaks."""
        async for part in self.parts():
            match part:
                case End():
                    self.hub.leave(self.tenant, part.reason)
                    return self.form.whole(part.reason, self.answer, self.seed)
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
                    yield event(self.form.happening(part))
                case End():
                    self.hub.leave(self.tenant, part.reason)
                    for chunk in self.form.end(part.reason, self.answer, self.seed):
                        yield event(chunk)
                case Broken():
                    told = {"molt": {**self.answer.summary(), "event": "broken", "seed": self.seed}}
                    yield event({**error_body(part.message, "server_error", part.code), **told})
        yield DONE


class EventStream(Response):
    """An answer, sent as it comes. Whoever goes away before its end frees what it holds."""

    media_type = "text/event-stream"

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(receive, self._send(send))
        finally:
            self._telling.hub.leave(self._telling.tenant)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self._telling.chunks():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
