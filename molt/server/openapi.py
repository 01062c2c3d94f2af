"""The OpenAPI document, made from the models that check the bodies, so that both always agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from molt import __version__
from molt.server.request_bodies import (
    BudgetRequest,
    ChatRequest,
    CompletionRequest,
    FollowRequest,
    TraceRequest,
)

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code", "param"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": ["string", "integer", "null"]},
                "param": {"type": ["string", "null"]},
            },
        }
    },
}
_OBJECT: dict[str, Any] = {"type": "object"}
_EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
_BODIES = {
    "/v1/chat/completions": ("Answer a chat.", ChatRequest),
    "/v1/completions": ("Continue a text.", CompletionRequest),
    "/admin/budget": ("Set the memory budget.", BudgetRequest),
    "/admin/trace": ("Replay a budget trace.", TraceRequest),
    "/admin/follow": ("Take the budget from a signal of the machine.", FollowRequest),
}
_READ = {
    "/health": ("Whether the server can answer.", "application/json"),
    "/v1/models": ("The one model, which is a ladder.", "application/json"),
    "/props": ("Settings, which do not change while the server runs.", "application/json"),
    "/metrics": ("Metrics for Prometheus.", "text/plain"),
    "/molt/state": ("The budget, the memory in use, the rungs and the tenants.", "application/json"),
    "/molt/events": ("The state, then every event: a stream without end.", "text/event-stream"),
    "/openapi.json": ("This document.", "application/json"),
    "/": ("The web page.", "text/html"),
}
_ERRORS = {
    "400": "Invalid body.",
    "401": "Token required.",
    "403": "Request from another site.",
    "404": "No such model.",
    "408": "Body not received in time.",
    "413": "Body too long.",
    "415": "Body is not JSON.",
    "421": "Host not served here.",
    "422": "Invalid body.",
    "431": "Headers too long.",
    "503": "Too many requests, or the engine is still loading.",
    "504": "Answer not complete in time.",
}


def document(models: Sequence[str]) -> dict[str, Any]:
    """The document, as plain data; ``models`` are the names that a request may give."""
    bodies = [(model, "validation") for _, model in _BODIES.values()]
    _, schemas = models_json_schema(bodies, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    schemas["$defs"].pop("Budget", None)  # the parsed form of a budget, which no body has
    for body in (ChatRequest, CompletionRequest):
        schemas["$defs"][body.__name__]["properties"]["model"] = {"type": "string", "enum": list(models)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Molt", "version": __version__},
        "paths": {
            **{path: {"get": _reading(*about)} for path, about in _READ.items()},
            "/v1/models/{name}": {"get": _one_model()},
            **{path: {"post": _posting(path, *about)} for path, about in _BODIES.items()},
        },
        "components": {
            "schemas": {**schemas["$defs"], "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _reading(summary: str, media_type: str) -> dict[str, Any]:
    schema = _OBJECT if media_type == "application/json" else {"type": "string"}
    return {
        "summary": summary,
        "responses": {"200": _content("Fine.", media_type, schema), **_errors(503, 401, 421)},
    }


def _one_model() -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    return {**_reading("The model by its name.", "application/json"), "parameters": [name]} | {
        "responses": {"200": _content("Fine.", "application/json", _OBJECT), **_errors(401, 404, 421)}
    }


def _posting(path: str, summary: str, model: type) -> dict[str, Any]:
    wrong = 422 if path.startswith("/admin/") else 400
    fine = _content("Fine.", "application/json", _OBJECT)
    if path.startswith("/v1/"):
        fine["content"]["text/event-stream"] = {"schema": _EVENT}
    body = {"$ref": f"#/components/schemas/{model.__name__}"}
    posting: dict[str, Any] = {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": fine, **_errors(wrong, 400, 401, 403, 404, 408, 413, 415, 421, 503, 504)},
    }
    return {**posting, "security": [{"token": []}]} if path.startswith("/admin/") else posting


def _errors(*statuses: int) -> dict[str, Any]:
    return {
        str(status): _content(
            _ERRORS[str(status)], "application/json", {"$ref": "#/components/schemas/Error"}
        )
        for status in statuses
    }


def _content(text: str, media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {media_type: {"schema": schema}}}
