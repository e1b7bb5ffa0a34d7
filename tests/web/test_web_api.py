"""Every address of the API against the command line and the library: one library, one document."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import vllm_capacity
from vllm_capacity.cli import run
from vllm_capacity.cli.schema import SCHEMAS, published
from vllm_capacity.inputs.catalogue import find_entry
from vllm_capacity.report.explain_schema import explain_schema
from vllm_capacity.report.json_report import plan_to_dict
from vllm_capacity.report.schema import plan_schema
from vllm_capacity.report.size_schema import size_schema

from web.serving import LLAMA, Served

LOGS = Path(__file__).parents[1] / "data" / "logs" / "scenarios"

TEN = {
    LLAMA: {"tensor_parallel_size": 1},
    "Qwen/Qwen3-30B-A3B": {"tensor_parallel_size": 2, "max_model_len": "32k"},
    "deepseek-ai/DeepSeek-V3": {"tensor_parallel_size": 8},
    "openai/gpt-oss-120b": {"tensor_parallel_size": 1, "max_num_seqs": 256},
    "google/gemma-3-27b-it": {"tensor_parallel_size": 2, "kv_cache_dtype": "fp8"},
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {"tensor_parallel_size": 4},
    "mistralai/Mixtral-8x7B-Instruct-v0.1": {"tensor_parallel_size": 2, "enforce_eager": True},
    "Qwen/Qwen2.5-VL-7B-Instruct": {"gpu_memory_utilization": 0.7},
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": {"max_model_len": 65536},
    "meta-llama/Llama-3.1-405B": {"tensor_parallel_size": 8},
}
"""Dense, experts, latent attention, sliding windows, linear attention, state space, vision; one that does not fit."""


def on_command_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    run([arguments[0], "--json", *arguments[1:]])
    return json.loads(capsys.readouterr().out)


def as_words(flags: dict[str, Any]) -> list[str]:
    words = []
    for name, value in flags.items():
        words.append(f"--{name.replace('_', '-')}")
        words += [] if value is True else [str(value)]
    return words


@pytest.mark.parametrize("model", TEN)
def test_api_command_line_and_library_give_the_same_document(
    server: Served, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = TEN[model]
    answer = server.plan(model=model, gpu="H100-80GB", vllm_version="0.26.0", flags=flags)
    assert answer.status_code == 200, answer.text
    library = vllm_capacity.plan(model, gpu="H100-80GB", vllm_version="0.26.0", weights="config", **flags)
    common = ("plan", "--model", model, "--gpu", "H100-80GB", "--vllm-version", "0.26.0", "--offline")
    document = answer.json()
    assert document == json.loads(json.dumps(plan_to_dict(library)))
    assert document == on_command_line(capsys, *common, *as_words(flags))
    jsonschema.validate(document, plan_schema())


def test_the_ten_models_do_not_all_say_the_same(server: Served) -> None:
    answers = [
        server.plan(model=m, gpu="H100-80GB", vllm_version="0.26.0", flags=f).json() for m, f in TEN.items()
    ]
    assert {answer["verdict"]["status"] for answer in answers} >= {"starts", "does_not_start"}
    assert len({answer["model"]["architecture"] for answer in answers}) == len(TEN) - 1  # two Llamas


def test_several_degrees_give_plans_as_on_the_command_line(
    server: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {"tensor_parallel_size": [1, 2, 4]}
    document = server.plan(model="Qwen/Qwen3-32B", gpu="L40S", flags=flags).json()
    assert len(document["plans"]) == 3
    assert document == on_command_line(
        capsys, "plan", "--model", "Qwen/Qwen3-32B", "--gpu", "L40S", "--tp", "1,2,4", "--offline"
    )


def test_a_pasted_start_and_flags_over_it(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        "VLLM_USE_V2_MODEL_RUNNER=0 docker run --gpus all vllm/vllm-openai:v0.26.0 "
        f"--model {LLAMA} --max-num-seqs 64 --max-model-len 16k"
    )
    document = server.plan(command=line, gpu="H200", flags={"max_num_seqs": 128}).json()
    assert document["vllm_version_source"] == "the image's tag"
    assert document["engine"]["max_num_seqs"] == 128
    assert document["engine"]["max_model_len"] == 16000
    assert document == on_command_line(
        capsys, "plan", "--gpu", "H200", "--max-num-seqs", "128", "--offline", "--", line
    )


def test_every_option_of_the_command_line_has_its_member(
    server: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {
        "model": LLAMA, "gpu_memory": "24GiB", "compute_capability": "8.9", "used_memory": "1GiB", "usage": "offline",
        "concurrency": 4, "suggestions": False, "environment": {"VLLM_USE_V2_MODEL_RUNNER": "0"}, "calibration": "none",
        "vllm_version": "0.27.0", "flags": {"max_model_len": 8192},
    }  # fmt: skip
    document = server.plan(**body).json()
    assert document["verdict"]["concurrency"]["asked"] == 4
    assert document == on_command_line(
        capsys, "plan", "--model", LLAMA, "--gpu-memory", "24GiB", "--compute-capability", "8.9", "--used-memory", "1GiB",
        "--usage", "offline", "--concurrency", "4", "--no-suggestions", "--env", "VLLM_USE_V2_MODEL_RUNNER=0",
        "--calibration", "none", "--vllm-version", "0.27.0", "--max-model-len", "8192", "--offline",
    )  # fmt: skip


def test_a_pasted_config_is_planned_as_the_library_plans_a_mapping(server: Served) -> None:
    entry = find_entry("Qwen/Qwen3-30B-A3B")
    assert entry is not None
    config = json.loads(json.dumps(entry.config))
    answer = server.plan(config=config, gpu="H200", flags={"hf_overrides": {"num_hidden_layers": 12}})
    library = vllm_capacity.plan(config, gpu="H200", hf_overrides={"num_hidden_layers": 12})
    assert answer.json() == json.loads(json.dumps(plan_to_dict(library)))


def test_a_pasted_config_may_have_a_name_and_the_side_file_of_modelopt(server: Served) -> None:
    entry = find_entry(LLAMA)
    assert entry is not None
    side = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None},
    }
    answer = server.plan(
        config=dict(entry.config), hf_quant_config=side, model="mine", gpu="H200", vllm_version="0.26.0"
    ).json()
    assert answer["model"]["id"] == "mine"
    assert answer["engine"]["quantization"] == "modelopt"


def test_what_vllm_refuses_is_an_answer_and_no_problem(server: Served) -> None:
    answer = server.plan(model=LLAMA, gpu="H200", flags={"tensor_parallel_size": 3})
    assert answer.status_code == 200
    assert answer.json()["verdict"]["status"] == "does_not_start"
    assert answer.json()["verdict"]["reason"] == "invalid_layout"
    jsonschema.validate(answer.json(), plan_schema())


SIZES = {
    "concurrency": (
        {"concurrency": 16, "gpus": ["H100-80GB", "L40S"], "flags": {"max_model_len": "32K"}},
        ("--concurrency", "16", "--gpu", "H100-80GB,L40S", "--max-model-len", "32K"),
    ),
    "workload": (
        {"prompt_tokens": 3000, "output_tokens": 500, "concurrent_users": 50, "nodes": ["h200x8"], "sort": "headroom"},
        ("--prompt-tokens", "3000", "--output-tokens", "500", "--concurrent-users", "50", "--node", "h200x8",
         "--sort", "headroom"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_size_is_the_document_of_the_command_line(
    server: Served, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body, words = SIZES[name]
    answer = server.post("/api/v1/size", {"model": "Qwen/Qwen3-32B", **body})
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document["rows"]
    assert document == on_command_line(capsys, "size", "--model", "Qwen/Qwen3-32B", "--offline", *words)
    jsonschema.validate(document, size_schema())


@pytest.mark.parametrize("log", sorted(path.name for path in LOGS.glob("*.log*")))
def test_explain_is_the_document_of_the_command_line(
    server: Served, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = server.explain((LOGS / log).read_bytes(), "application/octet-stream")
    assert answer.status_code == 200, answer.text
    document = answer.json()
    jsonschema.validate(document, explain_schema())
    expected = on_command_line(capsys, "explain", "--offline", str(LOGS / log))
    asks_hub = [text for text in document["missing"] if "--allow-hub" in text]
    if asks_hub:  # the command line says here that the network is off
        document["missing"] = [text for text in document["missing"] if "the model's config" not in text]
        expected["missing"] = [text for text in expected["missing"] if "the model's config" not in text]
    assert document == expected


def test_many_logs_name_a_model_of_the_catalogue(server: Served) -> None:
    """Else the test above would compare little."""
    planned = [server.explain(path.read_bytes()).json()["predicted"] for path in LOGS.glob("*.log")]
    assert sum(map(bool, planned)) >= 15


def test_explain_takes_gzip_and_what_is_known_beside_the_log(server: Served) -> None:
    log = (LOGS / "healthy_llama.log").read_bytes()
    plain = server.explain(log).json()
    assert server.explain(gzip.compress(log), "application/gzip").json() == plain
    other = server.explain(log, gpu="H200", vllm_version="0.26.0").json()
    assert other["verdict"] == "healthy"
    assert other["predicted"] != plain["predicted"]


@pytest.mark.parametrize(("path", "name"), [("models", "models"), ("gpus", "gpus")])
def test_the_catalogues_are_those_of_the_command_line(
    server: Served, path: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run([name, "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = server.get(f"/api/v1/{path}").json()[name]
    assert len(rows) > 50
    assert {json.dumps(row, sort_keys=True) for row in rows} <= {
        json.dumps(line, sort_keys=True) for line in lines
    }
    first = "id" if name == "models" else "name"
    assert {row[first] for row in rows} == {
        line[first] for line in lines if find_entry_id(line, first) == line[first]
    }


def find_entry_id(line: dict[str, Any], key: str) -> str:
    entry = find_entry(line[key]) if key == "id" else None
    return line[key] if entry is None else entry.model_id


@pytest.mark.parametrize(
    ("path", "text", "names"),
    [
        ("gpus", "h200", {"H200-141GB"}),
        ("gpus", "GeForce RTX 4090", {"RTX-4090"}),
        ("models", "deepseek-v3", {"deepseek-ai/DeepSeek-V3"}),
        ("models", "no such thing", set()),
    ],
)
def test_a_search_of_the_catalogues(server: Served, path: str, text: str, names: set[str]) -> None:
    rows = server.get(f"/api/v1/{path}", search=text).json()[path]
    found = {row.get("id") or row["name"] for row in rows}
    assert names <= found
    assert len(found) < 20
    assert bool(found) == bool(names)


def test_health(server: Served) -> None:
    answer = server.get("/healthz").json()
    assert answer["status"] == "ok"
    assert answer["tool_version"] == vllm_capacity.__version__
    assert "0.26.0" in answer["vllm_versions"]
    assert answer["allow_hub"] is False


# -- OpenAPI --------------------------------------------------------------------------------------------------------


@cache
def openapi_of(server: Served) -> Any:
    return server.get("/api/v1/openapi.json").json()


def schema_of(document: Any, path: str, method: str, status: str = "200") -> Any:
    (content,) = document["paths"][path][method]["responses"][status]["content"].values()
    return {**content["schema"], "components": document["components"]}


def test_openapi_lists_every_address_with_a_schema_of_its_own(server: Served) -> None:
    document = openapi_of(server)
    assert set(document["paths"]) == {
        "/api/v1/plan", "/api/v1/size", "/api/v1/explain", "/api/v1/models", "/api/v1/gpus",
        "/api/v1/problems/{name}", "/healthz",
    }  # fmt: skip
    for path, methods in document["paths"].items():
        for method in methods:
            schema = schema_of(document, path, method)
            assert set(schema) & {"$ref", "anyOf"}, path
            for status, answer in methods[method]["responses"].items():
                assert status == "200" or set(answer["content"]) == {"application/problem+json"}, (
                    path,
                    status,
                )
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_openapi_refers_to_nothing_that_is_not_there(server: Served) -> None:
    document = openapi_of(server)
    names = {part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    assert "://" not in json.dumps(document["components"])


def test_answers_hold_to_the_openapi_document(server: Served) -> None:
    document = openapi_of(server)
    log = (LOGS / "graph_capture_traceback.log").read_bytes()
    answers = {
        ("/api/v1/plan", "post"): server.plan(model=LLAMA),
        ("/api/v1/size", "post"): server.post("/api/v1/size", {"model": LLAMA, **SIZES["concurrency"][0]}),
        ("/api/v1/explain", "post"): server.explain(log),
        ("/api/v1/models", "get"): server.get("/api/v1/models"),
        ("/api/v1/gpus", "get"): server.get("/api/v1/gpus"),
        ("/api/v1/problems/{name}", "get"): server.get("/api/v1/problems/busy"),
        ("/healthz", "get"): server.get("/healthz"),
    }
    for (path, method), answer in answers.items():
        assert answer.status_code == 200, path
        jsonschema.validate(answer.json(), schema_of(document, path, method))
    problem = server.plan(model="no/such")
    jsonschema.validate(problem.json(), schema_of(document, "/api/v1/plan", "post", "403"))


def test_requests_hold_to_the_openapi_document(server: Served) -> None:
    document = openapi_of(server)
    for name, good in {
        "PlanRequest": {"model": LLAMA},
        "SizeRequest": {"model": LLAMA, "concurrency": 2},
    }.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.validate(good, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**good, "typo": 1}, schema)


def test_no_page_of_documentation_that_would_load_scripts_from_elsewhere(server: Served) -> None:
    for path in ("/docs", "/redoc", "/api/v1/docs"):
        assert server.get(path).status_code == 404


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_command_prints_the_published_schemas(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["schema", name])
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema == published(name)
    assert schema["title"] == f"vllm-capacity {name}"
