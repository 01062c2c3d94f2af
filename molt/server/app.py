"""The routes of the server, and its answers to errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from molt import __version__
from molt.core.view import Policy
from molt.server.access import AccessCheck, Keys, is_owners
from molt.server.admin import Administration, Budgeting, known_followers, shipped_traces
from molt.server.answering import ALIAS, Answering
from molt.server.body import until_disconnect
from molt.server.bridge import Bridge, Status
from molt.server.chunks import event
from molt.server.error_answers import ErrorAnswer, Unavailable
from molt.server.keep_alive import kept_alive
from molt.server.observers import View
from molt.server.openapi import document
from molt.server.page_files import page_files, page_routes
from molt.server.request_bodies import BadRequest


@dataclass(frozen=True, slots=True)
class Service:
    """The handlers of the routes."""

    bridge: Bridge
    answering: Answering
    budgeting: Budgeting
    policy: Policy
    created: int

    # --- GET ---

    async def health(self, request: Request) -> Response:
        """Whether the server can answer."""
        if self.bridge.status is not Status.READY:
            message = "Loading model" if self.bridge.status is Status.LOADING else self.bridge.status.value
            raise ErrorAnswer(503, message, 503)
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """The one model, which is a ladder."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """The model by its name."""
        if request.path_params["name"] not in self.answering.models:
            raise ErrorAnswer(
                404, f"no such model; this server has {self.bridge.ladder.name!r}", "model_not_found", "model"
            )
        return JSONResponse(self._model())

    async def props(self, request: Request) -> Response:
        """Settings, which do not change while the server runs."""
        limits = self.bridge.limits
        return JSONResponse(
            {
                "build_info": f"molt {__version__}",
                "model_alias": self.bridge.ladder.name,
                "total_slots": limits.answers,
                "n_ctx": self.answering.prompter.tokens_max + 1,
                "chat_format": self.answering.prompter.format,
                "default_max_tokens": limits.answer_tokens,
                "policy": self.policy.name,
                "promises": sorted(self.policy.promises),
                "budget_sources": ["manual", "trace", *sorted(known_followers())],
                "traces": list(shipped_traces()),
                "default_budget_bytes": self.budgeting.default_bytes,
                "rungs": self.bridge.view()["rungs"],
            }
        )

    async def metrics(self, request: Request) -> Response:
        """Metrics for Prometheus."""
        return Response(self.bridge.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def openapi(self, request: Request) -> Response:
        """The OpenAPI document of this API."""
        return JSONResponse(document(self.answering.models))

    async def state(self, request: Request) -> Response:
        """The budget, the memory in use, the rungs and the tenants."""
        return JSONResponse(self._state())

    async def events(self, request: Request) -> Response:
        """A stream of the state and then of every event."""
        return EventFeed(self.bridge, self._state())

    def _state(self) -> dict[str, Any]:
        own = {"ladder": self.bridge.ladder.name, "policy": self.policy.name, "source": self.budgeting.source}
        return {**own, "default_budget_bytes": self.budgeting.default_bytes, **self.bridge.view()}

    def _model(self) -> dict[str, Any]:
        rungs = [rung.name for rung in self.bridge.ladder.rungs]
        return {
            "id": self.bridge.ladder.name,
            "object": "model",
            "created": self.created,
            "owned_by": "molt",
            "molt": {"alias": ALIAS, "rungs": rungs},
        }


class EventFeed(Response):
    """The events of the server, until the client disconnects."""

    media_type = "text/event-stream"

    def __init__(self, bridge: Bridge, state: dict[str, Any]) -> None:
        self._bridge = bridge
        self._state = state
        super().__init__(headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._bridge.observers.watching(owner=is_owners(scope)) as view:
            await until_disconnect(receive, self._send(view, send))

    async def _send(self, view: View, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        notices = kept_alive(self._notices(view), self._bridge.limits.ping_s)
        async with aclosing(notices):
            async for notice in notices:
                await send({"type": "http.response.body", "body": notice, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _notices(self, view: View) -> AsyncIterator[bytes]:
        yield event({"type": "state", **self._state})
        while (notice := await view.get()) is not None:
            yield event(notice)


def application(service: Service, hosts: frozenset[str], keys: Keys, *, any_address: bool = False) -> ASGIApp:
    """The whole server behind its access check."""
    answering, administration = service.answering, Administration(service.bridge, service.budgeting)
    page = page_files()
    routes = [
        Route("/health", service.health),
        Route("/v1/models", service.models),
        Route("/v1/models/{name:path}", service.model),
        Route("/v1/chat/completions", answering.chat, methods=["POST"]),
        Route("/v1/completions", answering.text, methods=["POST"]),
        Route("/props", service.props),
        Route("/metrics", service.metrics),
        Route("/openapi.json", service.openapi),
        Route("/molt/state", service.state),
        Route("/molt/events", service.events),
        Route("/admin/budget", administration.budget, methods=["POST"]),
        Route("/admin/trace", administration.trace, methods=["POST"]),
        Route("/admin/follow", administration.follow, methods=["POST"]),
        *page_routes(page),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            ErrorAnswer: _failure,
            BadRequest: _bad_request,
            Unavailable: _unavailable,
            HTTPException: _http,
            ClientDisconnect: _disconnected,
            Exception: _unexpected,
        },
    )
    app.router.redirect_slashes = False
    return AccessCheck(
        app,
        hosts,
        keys,
        header_bytes=service.bridge.limits.header_bytes,
        any_address=any_address,
        open_paths=page,
    )


async def _failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, ErrorAnswer)
    return error.response()


async def _bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequest)
    return ErrorAnswer(400, error.message, error.code, error.param).response()


async def _unavailable(request: Request, error: Exception) -> Response:
    assert isinstance(error, Unavailable)
    return ErrorAnswer(503, error.message, 503, retry_after_s=error.retry_after_s).response()


async def _http(request: Request, error: Exception) -> Response:
    """Errors of the router: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    message = "no such path" if error.status_code == 404 else str(error.detail).lower()
    response = ErrorAnswer(error.status_code, message, close=request.method == "POST").response()
    response.headers.update(error.headers or {})
    return response


async def _disconnected(request: Request, error: Exception) -> Response:
    """The client has disconnected: this answer is not sent."""
    return Response(status_code=499)


async def _unexpected(request: Request, error: Exception) -> Response:
    return ErrorAnswer(500, "internal error", "internal_error").response()
