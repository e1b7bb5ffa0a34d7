"""The flags of each release: names are resolved as vLLM's parser does, and every flag is classified."""

from __future__ import annotations

import argparse
import ast
import time
from dataclasses import fields
from pathlib import Path

import pytest
import vllm_capacity
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError
from vllm_capacity.inputs import flags as flags_module
from vllm_capacity.inputs.flags import check_keys, flags_for, resolve_option
from vllm_capacity.inputs.flags.effects import EFFECTS, MODELLED, NO_EFFECT, UNMODELLED
from vllm_capacity.releases import get_release, supported_releases

RELEASES = [get_release(version) for version in supported_releases()]
R26, R33 = get_release("0.26.0"), get_release("0.33.0")
PACKAGE = Path(vllm_capacity.__file__).parent


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_every_flag_of_a_release_is_classified(release):
    table = flags_for(release)
    assert len(table) > 200
    assert all(flag.effect == "modelled" or flag.reason for flag in table.values())


def test_no_flag_is_classified_twice_or_without_a_release():
    names = " ".join([MODELLED, *NO_EFFECT.values(), *UNMODELLED.values()]).split()
    assert len(names) == len(set(names)) == len(EFFECTS)
    assert EFFECTS.keys() == {name for release in RELEASES for name in flags_for(release)}


def _asked_for() -> set[str]:
    """Names that the code takes out of EngineArgs: its fields, and what it asks `other` for."""
    asked = {field.name for field in fields(EngineArgs)}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "other"
            ):
                asked |= {arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    return asked


def test_modelled_flags_are_used():
    elsewhere = {"model", "revision", "config", "spec_method", "spec_model", "spec_tokens"}
    assert set(MODELLED.split()) - elsewhere <= _asked_for()


# Which release has which flag, kind and spelling: engine/arg_utils.py and config/*.py of that release.
@pytest.mark.parametrize(
    ("version", "name", "aliases", "kind"),
    [
        ("0.26.0", "tensor_parallel_size", ("--tensor-parallel-size", "-tp"), "int"),
        ("0.26.0", "prefill_context_parallel_size", ("--prefill-context-parallel-size", "-pcp"), "int"),
        ("0.26.0", "max_model_len", ("--max-model-len",), "human_int_or_auto"),
        ("0.26.0", "max_num_batched_tokens", ("--max-num-batched-tokens",), "human_int"),
        ("0.26.0", "compilation_config", ("--compilation-config", "-cc"), "config"),
        ("0.26.0", "speculative_config", ("--speculative-config", "-sc"), "json"),
        ("0.26.0", "hf_overrides", ("--hf-overrides",), "json_or_str"),
        ("0.26.0", "enable_prefix_caching", ("--enable-prefix-caching",), "bool"),
        ("0.26.0", "cudagraph_capture_sizes", ("--cudagraph-capture-sizes",), "list"),
        ("0.26.0", "gpu_memory_utilization", ("--gpu-memory-utilization",), "float"),
        (
            "0.33.0",
            "gpu_memory_utilization",
            ("--gpu-memory-utilization", "--device-memory-utilization"),
            "float",
        ),
        ("0.26.0", "lora_modules", ("--lora-modules",), "list"),
        ("0.26.0", "allowed_origins", ("--allowed-origins",), "json"),
        ("0.26.0", "api_server_count", ("--api-server-count", "-asc"), "int"),
        ("0.26.0", "disable_log_stats", ("--disable-log-stats",), "store_true"),
    ],
)
def test_flags_are_those_of_the_release(version, name, aliases, kind):
    flag = flags_for(get_release(version))[name]
    assert (flag.aliases, flag.kind) == (aliases, kind)


def test_choices_follow_the_release():
    """config/cache.py: CacheDType and MambaCacheMode."""
    cache_dtypes = [flags_for(get_release(v))["kv_cache_dtype"].choices for v in ("0.24.0", "0.25.0")]
    assert set(cache_dtypes[1]) - set(cache_dtypes[0]) == {"int4_per_token_head"}
    assert flags_for(get_release("0.31.0"))["mamba_cache_mode"].choices == ("align", "all", "none")
    assert flags_for(R33)["mamba_cache_mode"].choices == ("align", "none")


@pytest.mark.parametrize(
    ("word", "name", "negated", "path", "value"),
    [
        ("--kv-cache-memory", "kv_cache_memory_bytes", False, (), None),
        ("--max_model_len=32k", "max_model_len", False, (), "32k"),
        ("--no-enable_prefix_caching", "enable_prefix_caching", True, (), None),
        ("-tp", "tensor_parallel_size", False, (), None),
        ("-cc.mode", "compilation_config", False, ("mode",), None),
        ("--compilation_config.pass_config.fuse_norm_quant=true", "compilation_config", False,
         ("pass_config", "fuse_norm_quant"), "true"),
        ("-O3", "optimization_level", False, (), "3"),
        ("-O=2", "optimization_level", False, (), "2"),
        ("-qfp8", "quantization", False, (), "fp8"),
    ],
)  # fmt: skip
def test_words_are_read_as_vllm_reads_them(word, name, negated, path, value):
    """vllm/utils/argparse_utils.py: FlexibleArgumentParser.parse_args, on top of argparse."""
    option = resolve_option(word, R26)
    assert (option.flag.name, option.negated, option.path, option.value) == (name, negated, path, value)


def test_a_plus_adds_to_a_list():
    option = resolve_option("-cc.cudagraph_capture_sizes+=1,2", R26)
    assert (option.path, option.append, option.value) == (("cudagraph_capture_sizes",), True, "1,2")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--max-num", "ambiguous option: --max-num could match --max-num-batched-tokens"),
        ("--gpu-memory-utilisation", "did you mean --gpu-memory-utilization"),
        ("--device-memory-utilization", "is one of 0.31.0 to 0.33.0"),
        ("--max-model-len.x", "takes no keys"),
    ],
)
def test_other_words_are_refused_with_a_way_out(word, says):
    with pytest.raises(InputError, match=says):
        resolve_option(word, R26)


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ValueError(message)


def test_keys_of_a_config_are_checked_one_by_one():
    """config/compilation.py: CompilationConfig and PassConfig of 0.26.0."""
    good = {"mode": 3, "cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2], "cache_dir": "/tmp/x"}
    assert check_keys("compilation_config", good, R26) == ()
    with pytest.raises(InputError, match=r"did you mean compilation_config\.cudagraph_mode"):
        check_keys("compilation_config", {"cudagraph_modes": "FULL"}, R26)
    fused = {"pass_config": {"fuse_gemm_comms": True}}
    with pytest.raises(
        InputError, match=r"--compilation-config\.pass_config\.fuse_gemm_comms may change memory"
    ):
        check_keys("compilation_config", fused, R26)
    left_out = check_keys("compilation_config", fused, R26, allow_unmodelled=True)
    assert left_out == ("compilation_config.pass_config.fuse_gemm_comms",)


def test_a_key_belongs_to_its_releases():
    """enable_sp went with 0.32.0."""
    spread = {"pass_config": {"enable_sp": True}}
    assert check_keys("compilation_config", spread, get_release("0.31.0"), allow_unmodelled=True)
    with pytest.raises(InputError, match=r"is not a key that vLLM 0\.32\.0 knows"):
        check_keys("compilation_config", spread, get_release("0.32.0"), allow_unmodelled=True)


def test_configs_without_a_list_of_keys_pass():
    assert check_keys("kv_transfer_config", {"kv_connector": "NixlConnector"}, R26) == ()


def _argparse_of(release) -> argparse.ArgumentParser:
    parser = _Parser(add_help=False)
    for flag in flags_for(release).values():
        if flag.kind == "bool":
            parser.add_argument(*flag.aliases, dest=flag.name, action=argparse.BooleanOptionalAction)
        elif flag.kind == "store_true":
            parser.add_argument(*flag.aliases, dest=flag.name, action="store_true", default=None)
        else:
            parser.add_argument(*flag.aliases, dest=flag.name, nargs="?", const="given")
    return parser


@pytest.mark.parametrize("release", [RELEASES[0], R26, R33], ids=lambda release: release.version)
def test_every_prefix_of_every_flag_means_what_argparse_makes_of_it(release):
    parser = _argparse_of(release)
    words = {
        option[:length]
        for flag in flags_for(release).values()
        for option in flag.aliases
        if option.startswith("--")
        for length in range(4, len(option) + 1)
    }
    for word in words:
        try:
            given = vars(parser.parse_args([word]))
        except ValueError:
            with pytest.raises(InputError):
                resolve_option(word, release)
            continue
        assert [name for name, value in given.items() if value is not None] == [
            resolve_option(word, release).flag.name
        ]


def test_the_table_is_read_in_milliseconds():
    flags_module._data.cache_clear()
    flags_for.cache_clear()
    start = time.perf_counter()
    flags_for(R26)
    assert time.perf_counter() - start < 0.05  # 1.5 ms on an idle core; room for a busy one
