"""Problem details (RFC 9457): every error of the API, the kinds there are, and how an exception becomes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from vllm_capacity.errors import CapacityError, InputError, RefusedError
from vllm_capacity.vocabulary import add_meanings

MEDIA_TYPE = "application/problem+json"
TYPES_AT = "/api/v1/problems/"
MAX_ERRORS = 20


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem: `name` ends its type URI."""

    name: str
    status: int
    title: str
    meaning: str


KINDS = {
    kind.name: kind
    for kind in (
        Kind("bad-json", 400, "The body is not JSON that can be read",
             "Not JSON, not UTF-8, a key twice in one object, NaN, or nesting deeper than any config's."),
        Kind("hub-not-allowed", 403, "This server does not ask the Hub",
             "The model is not in the bundled catalogue. Send the contents of its config.json as `config`, or have the "
             "server started with --allow-hub."),
        Kind("not-found", 404, "There is nothing at this address", "The paths of the API are in /api/v1/openapi.json."),
        Kind("method-not-allowed", 405, "This address does not know the method", "The Allow header names those it knows."),
        Kind("slow-body", 408, "The body did not arrive in time", "The request was given up while its body was read."),
        Kind("too-large", 413, "The body is larger than this server reads", "`limit` says how many bytes are read."),
        Kind("media-type", 415, "The body is of another type than the address takes",
             "Requests are application/json without a content encoding; a log is text/plain, application/gzip or "
             "application/octet-stream."),
        Kind("host-not-allowed", 421, "This server does not answer under that name",
             "The Host header names neither localhost, nor an address, nor what --host and --allow-host give. It keeps pages "
             "of other sites from this server."),
        Kind("invalid", 422, "The request has entries of the wrong form", "`errors` says which, by JSON pointer."),
        Kind("cannot-plan", 422, "The input cannot be planned",
             "Malformed, unknown or not modelled; the detail names the thing and a way out. The command line ends with "
             "exit code 2 here."),
        Kind("refused", 422, "vLLM itself refuses this", "`reason` is the verdict's, the detail vLLM's own sentence."),
        Kind("too-much-memory", 422, "The answer would take more memory than a request may have",
             "The input asks for something far beyond any real deployment."),
        Kind("unexpected", 500, "The calculation failed in a way nobody foresaw",
             "A fault of this program: please report it with the request."),
        Kind("busy", 503, "Too many requests are waiting", "Come back after the seconds that Retry-After gives."),
        Kind("timeout", 504, "The calculation took longer than this server allows",
             "`limit` is the allowance in seconds; the calculation was stopped."),
    )
}  # fmt: skip
"""Every problem that the API answers with, by name."""


class Problem(BaseModel):
    """RFC 9457, with the members that some kinds add."""

    model_config = ConfigDict(extra="allow", json_schema_extra=add_meanings)

    type: str = Field(description="Address of an explanation of this kind of problem.")
    title: str = Field(description="The kind in words.")
    status: int
    detail: str = Field(description="The sentence that the command would print.")
    instance: str | None = Field(default=None, description="The path that was asked.")


class ProblemError(Exception):
    """A problem on its way to the client; `str()` is its detail. `extra` are members beside the standard ones."""

    def __init__(
        self,
        name: str,
        detail: str,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.name = name
        self.detail = detail
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]

    def document(self, root_path: str = "", instance: str | None = None) -> dict[str, Any]:
        """The members of the answer."""
        kind = self.kind
        members: dict[str, Any] = {
            "type": f"{root_path}{TYPES_AT}{kind.name}",
            "title": kind.title,
            "status": kind.status,
            "detail": self.detail,
        }
        if instance is not None:
            members["instance"] = instance
        return members | self.extra


def problem_of(error: BaseException) -> ProblemError:
    """The problem that an exception of the library stands for; anything unforeseen says nothing of its inside."""
    from vllm_capacity.web.requests import HubNotAllowedError

    if isinstance(error, ProblemError):
        return error
    if isinstance(error, HubNotAllowedError):
        return ProblemError("hub-not-allowed", str(error))
    if isinstance(error, RefusedError):
        return ProblemError("refused", str(error), {"reason": error.reason.value})
    if isinstance(error, (InputError, CapacityError)):
        return ProblemError("cannot-plan", str(error))
    if isinstance(error, ValidationError):
        return invalid(error.errors(include_url=False, include_input=False, include_context=False))
    if isinstance(error, MemoryError):
        return ProblemError("too-much-memory", KINDS["too-much-memory"].meaning)
    if isinstance(error, RecursionError):
        return ProblemError("cannot-plan", "the input is nested too deeply")
    return ProblemError(
        "unexpected", f"the calculation failed ({type(error).__name__}); please report it with the request"
    )


def invalid(errors: Any) -> ProblemError:
    """From pydantic's errors: where, as a JSON pointer, and what."""
    rows = [
        {"pointer": "".join(f"/{_escaped(part)}" for part in item["loc"]), "detail": str(item["msg"])[:300]}
        for item in list(errors)[:MAX_ERRORS]
    ]
    first = rows[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return ProblemError("invalid", f"{first['pointer'] or '/'}: {first['detail']}{more}", {"errors": rows})


def _escaped(part: object) -> str:
    return str(part)[:80].replace("~", "~0").replace("/", "~1")
