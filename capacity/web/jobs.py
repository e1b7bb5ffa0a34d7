"""What workers do: bytes in, bytes of JSON out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel
from vllm_capacity.errors import CapacityError
from vllm_capacity.web.problems import ProblemError
from vllm_capacity.web.requests import (
    ExplainRequest,
    PlanRequest,
    SizeRequest,
    default_device,
    explain_document,
    plan_document,
    size_document,
)
from vllm_capacity.web.settings import WebSettings

Request = TypeVar("Request", bound=BaseModel)


def plan(head: Mapping[str, Any], body: bytes, settings: WebSettings) -> bytes:
    """The document of `plan --json`."""
    return _json(plan_document(read(PlanRequest, body), settings))


def size(head: Mapping[str, Any], body: bytes, settings: WebSettings) -> bytes:
    """The document of `size --json`."""
    return _json(size_document(read(SizeRequest, body), settings))


def explain(head: Mapping[str, Any], body: bytes, settings: WebSettings) -> bytes:
    """The document of `explain --json`; the body is the log, the head what is known beside it."""
    return _json(explain_document(body, ExplainRequest.model_validate(dict(head)), settings))


def models(head: Mapping[str, Any], body: bytes, settings: WebSettings) -> bytes:
    """Every model of the catalogue, as `models --json` has them."""
    from vllm_capacity.inputs.catalogue import entries

    rows = [
        {"id": entry.model_id, "architecture": (entry.config.get("architectures") or ["?"])[0], **entry.facts}
        for entry in entries()
    ]
    return _json({"models": rows})


def gpus(head: Mapping[str, Any], body: bytes, settings: WebSettings) -> bytes:
    """Every GPU of the catalogue, as `gpus --json` has them."""
    from vllm_capacity.inputs.gpus import list_devices
    from vllm_capacity.report.json_report import device_to_dict

    return _json({"gpus": [device_to_dict(device) for device in list_devices()]})


def read(model: type[Request], body: bytes) -> Request:
    """A request from the bytes of its JSON. Raises ProblemError, or ValidationError."""
    from vllm_capacity.inputs.config_json import parse_json

    try:
        members = parse_json(body, "the body")
    except CapacityError as error:
        raise ProblemError("bad-json", str(error)) from None
    return model.model_validate(members)


def warm_up(settings: WebSettings) -> None:
    """Imports and caches what a first plan takes; asks for this machine's GPU, which needs a child process."""
    import vllm_capacity.sizing.ask  # noqa: F401

    default_device()
    with suppress(
        CapacityError
    ):  # a calibration file of this machine that cannot be read, say: each request will say so
        plan_document(PlanRequest(model="meta-llama/Llama-3.1-8B-Instruct"), settings)


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False).encode()  # an infinity is no JSON for most readers
