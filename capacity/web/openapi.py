"""What FastAPI's own OpenAPI document lacks: bodies that are not parsed by it, and problems of their own media type."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from vllm_capacity.web.problems import KINDS, MEDIA_TYPE, Problem
from vllm_capacity.web.requests import PlanRequest, SizeRequest

REF = "#/components/schemas/{model}"


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problem responses of an operation, as FastAPI's `responses`; 421 is one of every operation."""
    return {status: _problem(status) for status in (*statuses, 421)}


def _problem(status: int) -> dict[str, Any]:
    kinds = [kind for kind in KINDS.values() if kind.status == status]
    return {
        "description": "; ".join(f"{kind.name}: {kind.title}" for kind in kinds),
        "content": {MEDIA_TYPE: {"schema": {"$ref": REF.format(model="Problem")}}},
    }


def body_of(media_type: str, model: str | None, description: str | None = None) -> dict[str, Any]:
    """`openapi_extra` of an operation whose body is read by a worker."""
    schema = {"type": "string", "format": "binary"} if model is None else {"$ref": REF.format(model=model)}
    body: dict[str, Any] = {"required": True, "content": {media_type: {"schema": schema}}}
    if description:
        body["description"] = description
    return {"requestBody": body}


def publish(app: FastAPI) -> None:
    """Makes `app.openapi()` give the whole document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title,
                version=app.version,
                summary="Memory plans for vLLM: does it start, how much KV cache, where every byte goes.",
                routes=app.routes,
            )
            _, schemas = models_json_schema(
                [(PlanRequest, "validation"), (SizeRequest, "validation"), (Problem, "serialization")],
                ref_template=REF,
            )
            known = made.setdefault("components", {}).setdefault("schemas", {})
            known.update(schemas["$defs"])
            _without_fastapis_own_errors(made["paths"], known)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _without_fastapis_own_errors(paths: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Where parameters exist FastAPI documents its own form of a 422, which this API never sends."""
    for operation in (operation for methods in paths.values() for operation in methods.values()):
        if "application/json" in operation["responses"].get("422", {}).get("content", {}):
            del operation["responses"]["422"]
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
