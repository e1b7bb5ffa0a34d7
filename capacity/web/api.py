"""The API's addresses. Bodies travel to a worker as they arrive, answers come back as they are: the event loop parses neither."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.routing import Match
from vllm_capacity._version import __version__
from vllm_capacity.releases import supported_releases
from vllm_capacity.report.explain_schema import ExplainReport
from vllm_capacity.report.schema import PlanReport, PlansReport
from vllm_capacity.report.size_schema import SizeReport
from vllm_capacity.vocabulary import add_meanings
from vllm_capacity.web.catalogues import GpuList, ModelList, choose
from vllm_capacity.web.openapi import body_of, problems
from vllm_capacity.web.pool import Pool
from vllm_capacity.web.problems import KINDS, ProblemError
from vllm_capacity.web.requests import ExplainRequest

LOG_TYPES = ("text/plain", "application/gzip", "application/x-gzip", "application/octet-stream")
JSON_TYPES = ("application/json",)
CLIENT_LEFT = 499
"""Nobody sees it."""
GRACE_SECONDS = 2.0
"""A short job may end for nobody: a worker that is stopped has to be started again, which costs more."""
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]

router = APIRouter()


class Health(BaseModel):
    """What a probe or a person wants to know first."""

    model_config = ConfigDict(json_schema_extra=add_meanings)

    status: str = Field(description='"ok" once the server answers.')
    tool_version: str = Field(description="Of vllm-capacity.")
    vllm_versions: list[str] = Field(description="The releases that can be planned.")
    allow_hub: bool = Field(description="Whether models of the Hugging Face Hub may be named.")
    workers: int


class ProblemKind(BaseModel):
    """A kind of problem, as its `type` address explains it."""

    model_config = ConfigDict(json_schema_extra=add_meanings)

    name: str = Field(description="The end of its `type`.")
    status: int
    title: str = Field(description="The kind in words.")
    meaning: str = Field(description="What to make of it.")


class Search(BaseModel):
    """A search of a catalogue."""

    model_config = ConfigDict(extra="forbid")

    search: str = Field(default="", max_length=200, description="Part of a name, whatever its case.")


@router.post(
    "/api/v1/plan",
    response_model=PlanReport | PlansReport,
    responses=problems(400, 403, 408, 413, 415, 422, 500, 503, 504),
    openapi_extra=body_of("application/json", "PlanRequest"),
)
async def plan(request: Request) -> Any:
    """Does it start, how much KV cache does it get, where does every byte go: the document of `plan --json`.

    What vLLM refuses is an answer (`verdict.status`), not a problem. Several tensor-parallel sizes give `plans`.
    """
    _check_type(request, JSON_TYPES)
    return await _calculated(request, "plan")


@router.post(
    "/api/v1/size",
    response_model=SizeReport,
    responses=problems(400, 403, 408, 413, 415, 422, 500, 503, 504),
    openapi_extra=body_of("application/json", "SizeRequest"),
)
async def size(request: Request) -> Any:
    """Which GPUs hold a model and a load, how many, in which layout: the document of `size --json`."""
    _check_type(request, JSON_TYPES)
    return await _calculated(request, "size")


@router.post(
    "/api/v1/explain",
    response_model=ExplainReport,
    responses=problems(408, 413, 415, 422, 500, 503, 504),
    openapi_extra=body_of("text/plain", None, "A vLLM log, plain or gzip."),
)
async def explain(request: Request, known: Annotated[ExplainRequest, Query()]) -> Any:
    """Why a run failed and the smallest change that fixes it, from its log: the document of `explain --json`."""
    _check_type(request, LOG_TYPES)
    return await _calculated(request, "explain", known.model_dump(exclude_none=True))


@router.get("/api/v1/models", response_model=ModelList, responses=problems(422, 500, 503, 504))
async def models(request: Request, query: Annotated[Search, Query()]) -> Any:
    """The bundled catalogue of models."""
    return _json(await choose(request.app.state, "models", query.search))


@router.get("/api/v1/gpus", response_model=GpuList, responses=problems(422, 500, 503, 504))
async def gpus(request: Request, query: Annotated[Search, Query()]) -> Any:
    """The catalogue of GPUs."""
    return _json(await choose(request.app.state, "gpus", query.search))


@router.get("/api/v1/problems/{name}", responses=problems(404))
async def problem(name: str) -> ProblemKind:
    """What a problem's `type` means."""
    kind = KINDS.get(name)
    if kind is None:
        raise ProblemError("not-found", f"there is no problem named {name!r:.60}")
    return ProblemKind(name=kind.name, status=kind.status, title=kind.title, meaning=kind.meaning)


@router.get("/healthz", responses=problems())
async def healthz(request: Request) -> Health:
    """Whether the server answers."""
    return Health(
        status="ok",
        tool_version=__version__,
        vllm_versions=list(supported_releases()),
        allow_hub=request.app.state.settings.allow_hub,
        workers=len(request.app.state.pool.processes),
    )


fallback = APIRouter(include_in_schema=False)
"""Added last: what the addresses above leave of their prefix, so that the page's mount does not answer for the API."""


@fallback.api_route("/healthz", methods=METHODS)
@fallback.api_route("/api", methods=METHODS)
@fallback.api_route("/api/{path:path}", methods=METHODS)
async def nothing_here(request: Request) -> Any:
    """404, or 405 where another method would be answered."""
    methods: set[str] = set()
    for route in router.routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    if methods:
        allow = ", ".join(sorted(methods))
        raise ProblemError(
            "method-not-allowed", f"{request.method} is not one of {allow}", headers={"Allow": allow}
        )
    raise ProblemError("not-found", f"{request.url.path:.200} is no address of this API")


async def _calculated(request: Request, job: str, head: dict[str, Any] | None = None) -> Response:
    """The job's document. What nobody waits for any more is stopped: a worker is not to be had for a closed connection."""
    pool: Pool = request.app.state.pool
    async with pool.place(job) as place:
        body = await request.body()
        work = asyncio.ensure_future(place.run(job, head, body))
        left = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait((work,), timeout=GRACE_SECONDS)
            return _json(await work) if work.done() else Response(status_code=CLIENT_LEFT)
        finally:
            left.cancel()
            work.cancel()
            await asyncio.gather(work, left, return_exceptions=True)


async def _left(request: Request) -> None:
    """Ends when the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _check_type(request: Request, allowed: tuple[str, ...]) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if given not in allowed:
        raise ProblemError(
            "media-type",
            f"the body is {given or 'of no stated type'!r:.80}; this address takes {', '.join(allowed)}",
        )
    if encoding != "identity":
        raise ProblemError("media-type", f"a body in content encoding {encoding!r:.40} is not read")


def _json(document: bytes) -> Response:
    return Response(document, media_type="application/json")
