"""Pasted start-up lines read as vLLM's own parser would, and written back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.command_line import (
    PastedCommand,
    emit_command_line,
    parse_command_line,
    parse_flags,
    release_hint,
)
from vllm_capacity.releases import get_release

R26, R33 = get_release("0.26.0"), get_release("0.33.0")


def parse(line: str | list[str], vllm: str = "0.26.0") -> PastedCommand:
    return parse_command_line(line, release=get_release(vllm))


def error_of(line: str | list[str], vllm: str = "0.26.0") -> str:
    with pytest.raises(InputError) as error:
        parse(line, vllm)
    assert "\n" not in str(error.value)
    return str(error.value)


# -- flags ---------------------------------------------------------------------------------------------------


def test_underscores_short_forms_and_equals() -> None:
    args = parse(
        "vllm serve a/b -tp 4 --pipeline_parallel_size=2 -dp 2 --max_model_len 32k --enforce-eager"
    ).args
    assert (args.tensor_parallel_size, args.pipeline_parallel_size, args.data_parallel_size) == (4, 2, 2)
    assert (args.max_model_len, args.enforce_eager) == (32000, True)


def test_unambiguous_prefix_and_human_numbers() -> None:
    assert parse("vllm serve a/b --kv-cache-memory 12G").args.kv_cache_memory_bytes == 12 << 30
    assert parse("vllm serve a/b --max-num-batched 8K").args.max_num_batched_tokens == 8192
    assert parse("vllm serve a/b --max-model-len auto").args.max_model_len == -1
    assert parse("vllm serve a/b --max-model-len -1").args.max_model_len == -1
    assert "ambiguous option: --max-num could match" in error_of("vllm serve a/b --max-num 4")


def test_no_forms() -> None:
    args = parse(
        "vllm serve a/b --no-enable-prefix-caching --no-async-scheduling --enable-chunked-prefill"
    ).args
    assert (args.enable_prefix_caching, args.async_scheduling, args.enable_chunked_prefill) == (
        False,
        False,
        True,
    )


def test_dotted_json() -> None:
    line = "vllm serve a/b -cc.mode 3 -cc.cudagraph_mode=PIECEWISE -cc.pass_config.enable_sp true"
    line += " -cc.cudagraph_capture_sizes+ 1,2 -cc.cudagraph_capture_sizes+=3"
    assert parse(line).args.compilation_config == {
        "mode": 3,
        "cudagraph_mode": "PIECEWISE",
        "pass_config": {"enable_sp": True},
        "cudagraph_capture_sizes": ["1", "2", "3"],
    }
    assert parse(
        "vllm serve a/b --compilation-config.max_cudagraph_capture_size 64"
    ).args.compilation_config == {"max_cudagraph_capture_size": 64}
    spec = parse(
        "vllm serve a/b --speculative-config.method mtp --speculative-config.num_speculative_tokens 2"
    ).args
    assert spec.others["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 2}


def test_dotted_keys_replace_a_whole_object_as_in_vllm() -> None:
    """FlexibleArgumentParser appends the dotted object last, so argparse keeps only it."""
    command = parse("""vllm serve a/b -cc.mode 3 -cc '{"cudagraph_mode": "FULL"}'""")
    assert command.args.compilation_config == {"mode": 3}
    assert any("reads the keys only" in note for note in command.notes)


@pytest.mark.parametrize("spelling", ["-O3", "-O 3", "-O=3", "--optimization-level 3"])
def test_optimisation_level(spelling: str) -> None:
    assert parse(f"vllm serve a/b {spelling}").args.optimization_level == 3


def test_json_with_suffixes_and_lists() -> None:
    line = """vllm serve a/b --kv-transfer-config '{"kv_connector": "X", "n": 80m}'"""
    args = parse(line + " --cudagraph-capture-sizes 1 2 4 -tp 2").args
    assert args.others["kv_transfer_config"] == {"kv_connector": "X", "n": 80_000_000}
    assert (args.cudagraph_capture_sizes, args.tensor_parallel_size) == ((1, 2, 4), 2)


def test_last_value_counts() -> None:
    assert parse("vllm serve a/b -tp 2 --tensor-parallel-size 8").args.tensor_parallel_size == 8


def test_unknown_flag_names_the_nearest() -> None:
    assert "did you mean --max-model-len?" in error_of("vllm serve a/b --max-model-length 4096")
    assert "is not a flag of vLLM 0.19.0; it is one of" in error_of(
        "vllm serve a/b --linear-backend x", "0.19.0"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("vllm serve a/b c", "unrecognized argument: 'c'"),
        ("vllm serve a/b --enforce-eager=true", "takes no value"),
        ("vllm serve a/b --enforce-eager true", "unrecognized argument: 'true'"),
        ("vllm serve a/b --max-model-len", "--max-model-len: expected a value"),
        ("vllm serve a/b --max-model-len --enforce-eager", "expected a value"),
        ("vllm serve a/b --max-model-len ten", "--max-model-len"),
        ("vllm serve a/b -tp x", "--tensor-parallel-size must be an integer"),
        (
            "vllm serve a/b --gpu-memory-utilization 1.2",
            "--gpu-memory-utilization must be above 0 and at most 1",
        ),
        ("vllm serve a/b -cc '{mode: 3}'", "--compilation-config must be JSON"),
        ("vllm serve a/b -cc '[1]'", "must be a JSON object"),
        ("vllm serve a/b --tensor-parallel-size.x 1", "takes no keys"),
        ("vllm serve $MODEL", "does not set this variable"),
        ("vllm serve $(cat model)", "runs a command"),
        ("vllm serve 'a/b", "is not closed"),
        ("vllm bench serve --model a/b", "only `vllm serve`"),
        ("ls -la", "no vLLM start-up"),
        ("vllm serve a\nvllm serve b", "starts vLLM 2 times"),
        ("docker run --rm", "no image"),
        ("docker pull vllm/vllm-openai", "no vLLM start-up"),
    ],
)
def test_errors_are_one_line_that_says_what(line: str, message: str) -> None:
    assert message in error_of(line)


# -- what stands around --------------------------------------------------------------------------------------


def test_shell_text() -> None:
    text = """
    # start it
    export VLLM_USE_V2_MODEL_RUNNER=1; export SIZE=4
    pip install vllm
    $ CUDA_VISIBLE_DEVICES=0,1 vllm serve "meta-llama/Llama-3.1-8B-Instruct" \\
        --tensor-parallel-size $SIZE \\
        --max-model-len=8192 2>&1 | tee log.txt  # in the background
    """
    command = parse(text)
    assert command.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert (command.args.tensor_parallel_size, command.args.max_model_len) == (4, 8192)
    assert command.args.environment == {
        "VLLM_USE_V2_MODEL_RUNNER": "1", "SIZE": "4", "CUDA_VISIBLE_DEVICES": "0,1",
    }  # fmt: skip


def test_words_that_a_shell_has_split() -> None:
    command = parse(["env", "NCCL_P2P_DISABLE=1", "vllm", "serve", "a/b", "--hf-overrides", '{"x": 1}'])
    assert (command.model, command.args.hf_overrides) == ("a/b", {"x": 1})
    assert command.args.environment == {"NCCL_P2P_DISABLE": "1"}


@pytest.mark.parametrize(
    "program", ["python -m", "python3 -m", "/usr/bin/python3.12 -u -m", "sudo python3 -m"]
)
def test_server_module(program: str) -> None:
    command = parse(f"{program} vllm.entrypoints.openai.api_server --model a/b --port 8000 -tp 2")
    assert (command.model, command.args.tensor_parallel_size) == ("a/b", 2)


def test_serve_with_model_option_or_none() -> None:
    assert parse("vllm serve -tp 2 --model a/b --enforce-eager").model == "a/b"
    command = parse("vllm serve -tp 2")
    assert command.model == "Qwen/Qwen3-0.6B"
    assert any("names no model" in note for note in command.notes)


DOCKER = """docker run --runtime nvidia --gpus all \\
    -v ~/.cache/huggingface:/root/.cache/huggingface \\
    --env "HUGGING_FACE_HUB_TOKEN=$TOKEN" -e VLLM_LOGGING_LEVEL=DEBUG \\
    -p 8000:8000 --ipc=host -it --rm --shm-size 16g \\
    {image} \\
    {rest}"""


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.26.0", "0.26.0"), ("docker.io/vllm/vllm-openai:v0.33.0-cu130", "0.33.0"),
        ("vllm/vllm-openai:latest", None), ("vllm/vllm-openai", None), ("vllm/vllm-openai:nightly", None),
        ("vllm/vllm-openai:v0.27.0rc1", "0.27.0rc1"), ("example.org/my-image:v0.26.0", None),
    ],
)  # fmt: skip
def test_docker_tag_gives_the_release(image: str, version: str | None) -> None:
    line = DOCKER.format(image=image, rest="--model mistralai/Mistral-7B-v0.1 --max-model-len 4096")
    assert release_hint(line) == version
    command = parse(line)
    assert (command.model, command.args.max_model_len) == ("mistralai/Mistral-7B-v0.1", 4096)
    assert command.args.environment == {"VLLM_LOGGING_LEVEL": "DEBUG"}
    assert (version is None) == any("does not say which vLLM" in note for note in command.notes)


def test_docker_tag_chooses_the_flags() -> None:
    line = DOCKER.format(image="vllm/vllm-openai:v0.19.0", rest="a/b --linear-backend x")
    with pytest.raises(InputError, match=r"is not a flag of vLLM 0\.19\.0"):
        parse_command_line(line)
    with pytest.raises(InputError, match=r"0\.18\.0 was not read"):
        parse_command_line("docker run vllm/vllm-openai:v0.18.0 a/b")


@pytest.mark.parametrize(
    "rest",
    [
        "a/b -tp 2",
        "--model=a/b -tp 2",
        "vllm serve a/b -tp 2",
        "python3 -m vllm.entrypoints.openai.api_server --model a/b -tp 2",
    ],
)
def test_docker_entry_points(rest: str) -> None:
    command = parse(DOCKER.format(image="vllm/vllm-openai:v0.26.0", rest=rest))
    assert (command.model, command.args.tensor_parallel_size) == ("a/b", 2)


def test_secrets_are_not_kept() -> None:
    command = parse("HF_TOKEN=hf_x vllm serve a/b --api-key sk-1 --hf-token hf_x")
    assert "hf_x" not in repr(command)
    assert "sk-1" not in repr(command)


# -- --config ------------------------------------------------------------------------------------------------


def test_config_file_stands_before_the_flags(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: c/d\ntensor-parallel-size: 4\nmax-model-len: 8192\nenforce-eager: true\nasync-scheduling: "
        "false\n"
        "cudagraph-capture-sizes: [1, 2]\ncompilation-config:\n  pass_config: {enable_sp: true}\n"
    )
    command = parse(f"vllm serve --config {file} -tp 2")
    assert (command.model, command.args.tensor_parallel_size, command.args.max_model_len) == ("c/d", 2, 8192)
    assert (command.args.enforce_eager, command.args.async_scheduling) == (True, None)
    assert command.args.cudagraph_capture_sizes == (1, 2)
    assert command.args.compilation_config == {"pass_config": {"enable_sp": True}}
    assert parse(f"vllm serve a/b --config={file}").model == "a/b"


def test_config_file_errors(tmp_path: Path) -> None:
    assert "No such file" in error_of(f"vllm serve a/b --config {tmp_path / 'x.yaml'}")
    assert "yaml or yml" in error_of(f"vllm serve a/b --config {tmp_path / 'x.json'}")
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [1")
    assert "is not YAML" in error_of(f"vllm serve a/b --config {bad}")
    bad.write_text("!!python/object/apply:os.system ['true']")
    assert "is not YAML" in error_of(f"vllm serve a/b --config {bad}")
    bad.write_text("- 1")
    assert "must map flags to values" in error_of(f"vllm serve a/b --config {bad}")


# -- unmodelled, flags alone ---------------------------------------------------------------------------------


def test_flags_alone() -> None:
    assert parse_flags(["--max-num-seqs", "8", "-cc.mode", "0"], release=R26) == {
        "max_num_seqs": "8", "compilation_config": {"mode": 0},
    }  # fmt: skip
    with pytest.raises(InputError, match="unrecognized argument"):
        parse_flags(["a/b"], release=R26)


# -- there and back ------------------------------------------------------------------------------------------

_text = st.text(
    st.characters(codec="ascii", categories=("L", "N", "P", "S", "Z"), exclude_characters="$`"),
    min_size=1,
    max_size=12,
)
_word = _text.filter(lambda t: not t.startswith("-"))
"""argparse cannot take a list's value that looks like a flag."""
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_objects = st.dictionaries(_text, _json, min_size=1, max_size=3)
_compilation = st.fixed_dictionaries(
    {"mode": st.integers(0, 3)},
    optional={
        "cudagraph_mode": st.sampled_from(["NONE", "full_and_piecewise"]),
        "backend": _text,
        "cudagraph_capture_sizes": st.lists(st.integers(1, 512), max_size=3),
        "custom_ops": st.lists(_text, max_size=2),
    },
)
_speculation = st.fixed_dictionaries(
    {"method": st.just("eagle"), "num_speculative_tokens": st.integers(1, 8)}, optional={"model": _text}
)
_positive = st.integers(1, 1 << 40)
_maybe = st.none() | st.booleans()
_environment = st.dictionaries(
    st.sampled_from(["VLLM_LOGGING_LEVEL", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES"]), _text
)
_others = st.fixed_dictionaries(
    {},
    optional={
        "port": st.integers(1024, 65535),
        "enable_eplb": st.booleans(),
        "served_model_name": st.lists(_word, min_size=1).map(tuple),
        "revision": _text.filter(lambda t: t != "None"),
        "speculative_config": _speculation,
        "cpu_offload_gb": st.floats(0, 64),
        "mamba_ssm_cache_dtype": st.sampled_from(["auto", "float32"]),
        "limit_mm_per_prompt": _objects,
    },
)
_args = st.builds(
    EngineArgs,
    tensor_parallel_size=st.integers(1, 16),
    pipeline_parallel_size=st.integers(1, 4),
    data_parallel_size=st.integers(1, 4),
    enable_expert_parallel=st.booleans(),
    max_model_len=st.none() | st.just(-1) | _positive,
    gpu_memory_utilization=st.none() | st.floats(0.001, 1),
    kv_cache_memory_bytes=st.none() | _positive,
    max_num_batched_tokens=st.none() | _positive,
    max_num_seqs=st.none() | _positive,
    kv_cache_dtype=st.sampled_from(["auto", "fp8"]),
    dtype=st.sampled_from(["auto", "half"]),
    quantization=st.none() | st.just("fp8"),
    block_size=st.none() | st.just(32),
    enforce_eager=st.booleans(),
    attention_backend=st.none() | st.just("FLASHINFER"),
    num_gpu_blocks_override=st.none() | _positive,
    disable_hybrid_kv_cache_manager=_maybe,
    enable_prefix_caching=_maybe,
    enable_chunked_prefill=_maybe,
    async_scheduling=_maybe,
    optimization_level=st.none() | st.integers(0, 3),
    performance_mode=st.none() | st.sampled_from(["interactivity", "throughput"]),
    compilation_config=st.just({}) | _compilation,
    hf_overrides=st.just({}) | _objects,
    cudagraph_capture_sizes=st.none() | st.lists(_positive, min_size=1, max_size=4).map(tuple),
    max_cudagraph_capture_size=st.none() | st.integers(0, 4096),
    environment=_environment,
    others=_others,
)


@settings(max_examples=300, deadline=None)
@given(args=_args, model=st.sampled_from(["meta-llama/Llama-3.1-8B-Instruct", "/models/my model", "./x"]))
def test_an_emitted_line_reads_back(args: EngineArgs, model: str) -> None:
    line = emit_command_line(model, args, R33)
    read = parse_command_line(line, release=R33)
    assert (read.model, read.args) == (model, args)
    assert line.count("\n") == 0


def test_emitted_line_is_plain() -> None:
    args = EngineArgs(
        tensor_parallel_size=4,
        max_model_len=32768,
        environment={"VLLM_USE_V2_MODEL_RUNNER": "1"},
        compilation_config={"mode": 3},
        enable_prefix_caching=False,
    )
    assert emit_command_line("a/b", args, R26) == (
        "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve a/b --tensor-parallel-size 4 --max-model-len 32768 "
        "--no-enable-prefix-caching --compilation-config '{\"mode\": 3}'"
    )
    with pytest.raises(InputError, match=r"--nonsense is not a flag of vLLM 0\.26\.0"):
        emit_command_line("a/b", EngineArgs(others={"nonsense": 1}), R26)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.text(max_size=10)
        | st.sampled_from(["vllm", "serve", "--config", "-cc.a", "docker", "run", "-O", "=", "--", "-", "."])
    )
)
def test_any_words_give_a_command_or_one_line_of_error(words: list[str]) -> None:
    for line in (words, " ".join(words), json.dumps(words)):
        message = ""
        try:
            assert isinstance(parse_command_line(line, release=R33), PastedCommand)
        except InputError as error:
            message = str(error)
        assert "\n" not in message
