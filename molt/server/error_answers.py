"""Errors as HTTP answers: OpenAI's shape, one line, no paths, no traces, no text of a prompt."""

from __future__ import annotations

from starlette.responses import JSONResponse

from molt.server.chunks import error_body

_KINDS = {401: "authentication_error", 403: "permission_error", 503: "unavailable_error"}


class Unavailable(Exception):
    """Not available now; ``retry_after_s``: when to try again, if that makes sense."""

    def __init__(self, message: str, retry_after_s: int | None) -> None:
        super().__init__(message)
        self.message, self.retry_after_s = message, retry_after_s


class ErrorAnswer(Exception):
    """A request that is answered with an error. ``retry_after_s``: when to try again."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | int | None = None,
        param: str | None = None,
        *,
        retry_after_s: int | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after_s, self.close = retry_after_s, close

    def response(self) -> JSONResponse:
        """The HTTP answer; ``close`` ends the connection, for a body that is left unread."""
        kind = _KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.close:
            headers["Connection"] = "close"
        return JSONResponse(error_body(self.message, kind, self.code, self.param), self.status, headers)
