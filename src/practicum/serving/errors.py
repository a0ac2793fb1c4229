"""Errors of the server as clients read them: a status, a sentence, the parameter and a code."""

from __future__ import annotations

from typing import Any

KIND_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class APIError(Exception):
    """An answer that is an error; `param` is the field of the body that is wrong, `code` what clients go by."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    @property
    def kind(self) -> str:
        return KIND_OF_STATUS.get(self.status, "api_error")

    @property
    def headers(self) -> dict[str, str]:
        """Seconds to wait; of a conflict, which OpenAI's and Anthropic's clients would repeat, that it stays one."""
        if self.status == 409:
            return {"x-should-retry": "false"}
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}

    def openai(self) -> dict[str, Any]:
        """The body in OpenAI's shape."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        """The body in Anthropic's shape."""
        text = self.message if self.param is None else f"{self.param}: {self.message}"
        return {"type": "error", "error": {"type": self.kind, "message": text}}


def bad_request(message: str, param: str | None, code: str = "invalid_value") -> APIError:
    return APIError(400, message, param, code)


def internal_error(error: Exception) -> APIError:
    """The answer to a request that met a fault of the server itself."""
    return APIError(500, f"The server failed: {type(error).__name__}.", None, "internal_error")
