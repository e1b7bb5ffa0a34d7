"""Deployment snippets, read back by real parsers: the schemas of Kubernetes and Compose, the shell, our command line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from vllm_capacity.cli import run
from vllm_capacity.inputs.command_line import parse_command_line

COMPOSE = json.loads((Path(__file__).parent.parent / "data" / "compose-spec.json").read_text())
PLANS = {
    "one GPU": ("--model", "Qwen/Qwen3-8B", "--gpu", "H100"),
    "two GPUs, variables, JSON": (
        "--model", "Qwen/Qwen3-8B", "--gpu", "H100", "--tp", "2", "--env", "VLLM_LOGGING_LEVEL=INFO",
        "--compilation-config", '{"cudagraph_mode": "PIECEWISE"}', "--max-model-len", "16K",
    ),
    "two nodes": ("--model", "deepseek-ai/DeepSeek-V3", "--gpu", "H100", "--tp", "8", "--pp", "2", "--max-model-len", "32K"),
    "two nodes, data parallel": (
        "--model", "deepseek-ai/DeepSeek-V3", "--gpu", "H100", "--dp", "16", "-ep", "--max-model-len", "32K",
    ),
}  # fmt: skip


def emitted(kind: str, name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["plan", "--vllm-version", "0.26.0", *PLANS[name], "--emit", kind]) == 0
    return capsys.readouterr().out


def planned(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    run(["plan", "--vllm-version", "0.26.0", "--json", "--no-suggestions", *PLANS[name]])
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


def of_kind(text: str, kind: str) -> dict[str, Any]:
    (found,) = [document for document in yaml.safe_load_all(text) if document["kind"] == kind]
    return dict(found)


@pytest.mark.parametrize("name", PLANS)
def test_kubernetes_accepts_every_core_object(name: str, capsys: pytest.CaptureFixture[str]):
    text = emitted("kubernetes", name, capsys)
    for document in yaml.safe_load_all(text):
        if document["kind"] != "LeaderWorkerSet":
            kubernetes_validate.validate(document, "1.31", strict=True)
            continue
        # A LeaderWorkerSet's templates are pod templates: each must be one that a core object accepts.
        for part in ("leaderTemplate", "workerTemplate"):
            template = dict(document["spec"]["leaderWorkerTemplate"][part])
            template["metadata"] = {"labels": {"app": "x"}}
            pod = {
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"},
                "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template},
            }  # fmt: skip
            kubernetes_validate.validate(pod, "1.31", strict=True)


@pytest.mark.parametrize("name", PLANS)
def test_compose_accepts_the_file(name: str, capsys: pytest.CaptureFixture[str]):
    jsonschema.Draft7Validator(COMPOSE).validate(yaml.safe_load(emitted("compose", name, capsys)))


def test_the_checkers_can_fail(capsys: pytest.CaptureFixture[str]):
    deployment = of_kind(emitted("kubernetes", "one GPU", capsys), "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["imagge"] = "x"
    with pytest.raises(Exception, match="imagge"):
        kubernetes_validate.validate(deployment, "1.31", strict=True)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(COMPOSE).validate({"services": {"a": {"imagge": "x"}}})


@pytest.mark.parametrize("name", ["one GPU", "two GPUs, variables, JSON"])
def test_one_machine_gets_the_flags_gpus_and_memory_of_the_plan(
    name: str, capsys: pytest.CaptureFixture[str]
):
    plan = planned(name, capsys)
    gpus, host = len(plan["ranks"]), plan["host"]
    wanted = parse_command_line(["vllm", "serve", *words_of_plan(name)]).args
    (container,) = of_kind(emitted("kubernetes", name, capsys), "Deployment")["spec"]["template"]["spec"][
        "containers"
    ]
    assert parse_command_line(container["command"]).args.max_model_len == wanted.max_model_len
    assert parse_command_line(container["command"]).args.tensor_parallel_size == gpus
    assert container["resources"]["limits"]["nvidia.com/gpu"] == str(gpus)
    assert (
        mebibytes(container["resources"]["requests"]["memory"]) << 20
        >= host["shared_memory_bytes"] + host["pinned_bytes"]
    )
    (service,) = yaml.safe_load(emitted("compose", name, capsys))["services"].values()
    assert service["image"] == "vllm/vllm-openai:v0.26.0"
    assert parse_command_line(["vllm", "serve", *service["command"]]).args.tensor_parallel_size == gpus
    assert mebibytes(service["shm_size"]) << 20 >= host["shared_memory_bytes"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == gpus


def words_of_plan(name: str) -> list[str]:
    words = list(PLANS[name])
    model = words[words.index("--model") + 1]
    length = (
        ["--max-model-len", words[words.index("--max-model-len") + 1]] if "--max-model-len" in words else []
    )
    return [model, *length]


def mebibytes(text: str) -> int:
    return int(text.rstrip("Mim"))


@pytest.mark.parametrize("name", ["two nodes", "two nodes, data parallel"])
def test_several_nodes_get_a_ray_cluster(name: str, capsys: pytest.CaptureFixture[str]):
    text = emitted("kubernetes", name, capsys)
    template = of_kind(text, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    for part in ("leaderTemplate", "workerTemplate"):
        (container,) = template[part]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    leader = template["leaderTemplate"]["spec"]["containers"][0]["command"][-1]
    flag = "--data-parallel-backend ray" if "data" in name else "--distributed-executor-backend ray"
    assert flag in leader
    assert "ray start --head" in emitted("serve", name, capsys)


def test_the_command_is_one_line_of_shell_words(capsys: pytest.CaptureFixture[str]):
    text = emitted("serve", "two GPUs, variables, JSON", capsys)
    (line,) = [line for line in text.splitlines() if not line.startswith("#")]
    words = shlex.split(line)
    assert words[:4] == ["VLLM_LOGGING_LEVEL=INFO", "vllm", "serve", "Qwen/Qwen3-8B"]
    assert '{"cudagraph_mode": "PIECEWISE"}' in words


def test_what_does_not_start_is_not_deployed(capsys: pytest.CaptureFixture[str]):
    words = ["plan", "--model", "meta-llama/Llama-3.1-70B-Instruct", "--gpu", "L4", "--emit", "compose"]
    assert run(words) == 2
    assert "does not start" in capsys.readouterr().err
    assert run(["plan", "--model", "Qwen/Qwen3-8B", "--gpu", "H100", "--tp", "1,2", "--emit", "serve"]) == 2
