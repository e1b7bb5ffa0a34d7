"""Environment variables: unknown names are refused, known ones classified, and what is modelled is used."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import vllm_capacity
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.environment import check_environment, variable, variables_of
from vllm_capacity.inputs.environment.effects import EFFECTS, MODELLED, NO_EFFECT, PARTLY_MODELLED, UNMODELLED
from vllm_capacity.releases import get_release, supported_releases

RELEASES = [get_release(version) for version in supported_releases()]
PACKAGE = Path(vllm_capacity.__file__).parent


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_every_variable_of_a_release_is_classified(release):
    assert all(
        item.effect in ("modelled", "no_effect", "unmodelled") for item in variables_of(release).values()
    )
    assert len(variables_of(release)) > 200


def test_no_variable_is_classified_twice():
    names = " ".join([MODELLED, *NO_EFFECT.values(), *UNMODELLED.values()]).split()
    assert len(names) == len(set(names)) == len(EFFECTS)


def test_what_is_called_modelled_is_read_somewhere():
    """Fails in both directions: a variable that the code reads must be modelled, and the other way round."""
    own = PACKAGE / "inputs" / "environment"
    strings = {
        node.value
        for path in PACKAGE.rglob("*.py")
        if own not in path.parents
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert strings & EFFECTS.keys() == set(MODELLED.split()) | PARTLY_MODELLED


# Names and defaults: vllm/envs.py of each release.
@pytest.mark.parametrize(
    ("version", "name", "default"),
    [
        ("0.19.1", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "False"),
        ("0.20.0", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "True"),
        ("0.28.0", "VLLM_ALLREDUCE_USE_FLASHINFER", "False"),
        ("0.29.0", "VLLM_ALLREDUCE_USE_FLASHINFER", "True"),
        ("0.26.0", "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", "394 * 1024 * 1024"),
        ("0.21.0", "VLLM_USE_V2_MODEL_RUNNER", "False"),
        ("0.22.0", "VLLM_USE_V2_MODEL_RUNNER", "None"),
    ],
)
def test_defaults_are_those_of_envs_py(version, name, default):
    assert variable(name, get_release(version)).default == default


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("VLLM_MAX_MODEL_LEN", "does not exist in vLLM 0.26.0: use --max-model-len"),
        ("VLLM_USE_V2_MODEL_RUNER", "the nearest variable is VLLM_USE_V2_MODEL_RUNNER"),
        ("VLLM_REPLICATE_EMBED", "vLLM 0.26.0 does not read VLLM_REPLICATE_EMBED; 0.29.0 to 0.33.0 does"),
    ],
)
def test_an_unknown_vllm_name_is_refused_with_a_way_out(name, says):
    with pytest.raises(InputError, match=says.replace(".", r"\.")):
        check_environment({name: "1"}, get_release("0.26.0"))


def test_an_unmodelled_variable_is_refused_unless_allowed():
    release = get_release("0.26.0")
    with pytest.raises(InputError, match=r"NCCL_ALGO .* --allow-unmodelled"):
        check_environment({"NCCL_ALGO": "Ring"}, release)
    (left_out,) = check_environment({"NCCL_ALGO": "Ring"}, release, allow_unmodelled=True)
    assert left_out.name == "NCCL_ALGO"


def test_an_unmodelled_variable_at_its_default_changes_nothing():
    release = get_release("0.26.0")
    assert check_environment({"VLLM_ALLREDUCE_USE_FLASHINFER": "0", "VLLM_USE_OINK_OPS": "0"}, release) == ()
    with pytest.raises(InputError):
        check_environment({"VLLM_ALLREDUCE_USE_FLASHINFER": "1"}, release)


@pytest.mark.parametrize("name", ["NCCL_SOME_NEW_SETTING", "PYTORCH_NEW", "CUBLAS_NEW", "TORCH_SYMM_MEM_NEW"])
def test_unknown_settings_of_memory_libraries_are_unmodelled(name):
    assert variable(name, get_release("0.26.0")).effect == "unmodelled"


def test_variables_of_others_pass():
    environment = {
        "HF_HOME": "/models",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_DEBUG": "INFO",
    }
    assert check_environment(environment, get_release("0.33.0")) == ()
