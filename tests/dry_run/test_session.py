"""The protocol, and every way in which the other side can fail."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.validate.dry_run import selftest
from vllm_capacity.validate.dry_run.job import describe_gpu
from vllm_capacity.validate.dry_run.session import EngineSideError, RankFailedError, Session

from dry_run.conftest import HELLO, KV, QWEN, SELF_TEST, answer, living


def test_answers_come_back_in_order(start, tmp_path: Path):
    with start([HELLO, answer(QWEN), answer(KV)]) as session:
        assert session.vllm_version == "0.26.0"
        rank = session.rank({"op": "rank"})
        assert rank["parameters"] == QWEN["result"]["parameters"]
        assert session.plan_kv([0], [119687369831])["num_blocks"] == KV["result"]["num_blocks"]
    asked = (tmp_path / "requests").read_text().splitlines()
    assert '"op": "kv"' in asked[2]
    assert '"available": [119687369831]' in asked[2]


def test_a_python_without_vllm_is_named():
    device = describe_gpu(find_device("H200"))
    if importlib.util.find_spec("vllm"):
        pytest.skip("this Python has vLLM")
    with pytest.raises(InputError, match=r"(No module named|has no vLLM).*vLLM image"):
        Session(sys.executable, device, stub=Path("absent"), warm_up=Path("absent"))


def test_a_python_that_is_not_there_is_named():
    with pytest.raises(InputError, match="/no/such/python: cannot be started"):
        Session("/no/such/python", {}, stub=Path("absent"), warm_up=Path("absent"))


@pytest.mark.parametrize("steps", [["die"], [HELLO, "die"]], ids=["at start", "in a rank"])
def test_a_death_shows_exit_code_and_log(start, steps):
    with (
        pytest.raises(EngineSideError, match=r"exit code 3 \| Traceback: the machine is on fire"),
        start(steps) as session,
    ):
        session.rank({"op": "rank"})


def test_a_kill_is_told_from_an_exit(start):
    with pytest.raises(EngineSideError, match="exit code -9"), start([HELLO, "killed"]) as session:
        session.rank({"op": "rank"})


def test_a_hang_ends_with_all_its_processes(start):
    session = start([HELLO, "hang"], rank_limit_s=1.0)
    group = session._process.pid
    with pytest.raises(EngineSideError, match="did not answer within 1 s"), session:
        session.rank({"op": "rank"})
    assert living(group) == []


def test_garbage_is_refused(start):
    with pytest.raises(EngineSideError, match="no JSON"), start([HELLO, "garbage"]) as session:
        session.rank({"op": "rank"})


def test_an_answer_to_another_request_is_refused(start):
    with (
        pytest.raises(EngineSideError, match="answered request 99"),
        start([HELLO, {**QWEN, "id": 99}]) as session,
    ):
        session.rank({"op": "rank"})


def test_another_protocol_is_refused(start):
    with pytest.raises(EngineSideError, match="speaks protocol 7"):
        start([{**HELLO, "protocol": 7}])


def test_vllms_own_sentence_is_kept(start):
    error = {
        "type": "ValueError",
        "message": "No available memory",
        "where": ["vllm/a.py:1 f", "vllm/b.py:2 g"],
    }
    with start([HELLO, {"ok": False, "error": error}]) as session, pytest.raises(RankFailedError) as caught:
        session.rank({"op": "rank"})
    assert str(caught.value).startswith("ValueError: No available memory")
    assert caught.value.kind == "ValueError"
    assert caught.value.where[-1] == "vllm/b.py:2 g"


def test_self_test_accepts_what_vllm_builds(start):
    with start([HELLO, answer(SELF_TEST)]) as session:
        selftest.self_test(session)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": 8_030_261_247}, "8,030,261,247 parameters instead of 8,030,261,248"),
        ({"parameter_bytes": 8_030_261_248}, "bytes of bfloat16"),
        ({"load_exactness": {"skipped_operators": {"_C.rms_norm": 2}}}, "operators were skipped"),
    ],
)
def test_self_test_refuses_anything_else(start, changes, words):
    wrong = {**answer(SELF_TEST), "result": {**SELF_TEST["result"], **changes}}
    with start([HELLO, wrong]) as session, pytest.raises(InputError, match=words):
        selftest.self_test(session)


def test_a_release_that_was_not_checked_is_refused(start):
    told = r"0\.26\.0.*--python has 0\.99\.0"
    with start([{**HELLO, "vllm": "0.99.0"}]) as session, pytest.raises(InputError, match=told):
        selftest.self_test(session)
