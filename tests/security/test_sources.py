"""What the package's own sources may do at all: a new place that runs, loads or connects has to be named here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSIDE_THE_ENGINE = ("validate/engine_side/", "validate/dry_run/engine_side/")
"""Code that runs inside of vLLM's process, whose environment the user named with --python."""

RUNS_PROGRAMS = {
    "capacity/inputs/local_gpu.py": "this Python, to ask the CUDA driver with a time limit",
    "validate/gpu_state.py": "nvidia-smi",
    "validate/planning.py": "--python, for the version of its vLLM",
    "validate/processes.py": "--python, the engine that was asked for",
    "validate/dry_run/command.py": "--python, for the version of its vLLM",
    "validate/dry_run/session.py": "--python, vLLM's start-up that was asked for",
    "validate/dry_run/stub.py": "the C compiler, on a source of this package",
}
MAKES_PROCESSES = {
    "capacity/sizing/search.py": "copies of itself, to search on several cores",
    "capacity/web/pool.py": "workers of the server",
    "capacity/web/worker.py": "workers of the server",
}
CONNECTS = {
    "capacity/inputs/http_ranges.py": "safetensors headers from the Hub, when asked",
    "capacity/inputs/hub.py": "configs from the Hub, when asked",
    "capacity/inputs/plain_hub.py": "the usual answers of the Hub, when asked",
    "capacity/inputs/safetensors_headers.py": "the same: which ranges",
    "capacity/web/": "listens; on 127.0.0.1 unless told otherwise",
    "validate/runner.py": "a free port for data-parallel engines, on 127.0.0.1",
    "validate/logs.py": "the machine's own name, to leave it out of records",
}
EVALUATES = {
    "capacity/frozen.py": "exec: the constructor of a dataclass, made of its field names",
    "capacity/ledger.py": "eval: formulas that stand in this package",
}
IMPORTS_BY_NAME = {
    "capacity/__init__.py": "the public names",
    "capacity/api.py": "the public names",
    "capacity/architecture/registry.py": "builders, by a table of this package",
    "capacity/cli/__init__.py": "commands, by a table of this package",
    "capacity/cli/schema.py": "schemas, by a table of this package",
    "capacity/inputs/http_ranges.py": "certifi",
    "capacity/weights/quantisation/__init__.py": "methods, by a table of this package",
    "capacity/web/worker.py": "what a worker needs, before it answers",
}
LOADERS = {"pickle", "cPickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "torch", "numpy", "transformers", "vllm",
           "safetensors", "runpy", "code", "codeop"}  # fmt: skip
"""Modules that can run what they load, or the libraries whose loaders do."""
NETWORK = {"socket", "ssl", "urllib.request", "http.client", "http.server", "socketserver", "ftplib", "smtplib", "httpx",
           "requests", "aiohttp", "huggingface_hub", "uvicorn", "asyncio.streams"}  # fmt: skip


@cache
def sources() -> dict[str, ast.Module]:
    """Path from the root -> tree, of everything that is installed and runs on our side."""
    files = [file for top in ("capacity", "validate") for file in sorted((ROOT / top).rglob("*.py"))]
    named = {file.relative_to(ROOT).as_posix(): file for file in files}
    return {
        name: ast.parse(file.read_text(), name)
        for name, file in named.items()
        if not name.startswith(INSIDE_THE_ENGINE)
    }


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def called(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """(dotted name, call)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            parts, target = [], node.func
            while isinstance(target, ast.Attribute):
                parts.append(target.attr)
                target = target.value
            if isinstance(target, ast.Name):
                parts.append(target.id)
            yield ".".join(reversed(parts)), node


def places(names: set[str]) -> set[str]:
    """Files that import one of these modules."""
    return {
        file
        for file, tree in sources().items()
        if any(n in names or n.partition(".")[0] in names for n in imported(tree))
    }


def allowed(files: set[str], table: dict[str, str]) -> set[str]:
    """Files without a reason in the table."""
    return {
        file
        for file in files
        if not any(file == key or (key.endswith("/") and file.startswith(key)) for key in table)
    }


def test_programs_are_started_in_named_places_only() -> None:
    assert allowed(places({"subprocess", "pty"}), RUNS_PROGRAMS | MAKES_PROCESSES) == set()
    assert allowed(places({"multiprocessing", "concurrent.futures.process"}), MAKES_PROCESSES) == set()
    for file, tree in sources().items():
        for name, call in called(tree):
            assert name not in ("os.system", "os.popen", "os.startfile", "os.fork"), (file, call.lineno)
            assert not name.startswith(("os.exec", "os.spawn", "os.posix_spawn")), (file, call.lineno)
            assert not any(k.arg == "shell" for k in call.keywords if not _is_option(name)), (
                file,
                call.lineno,
            )


def _is_option(name: str) -> bool:
    return name.endswith(("option", "Option", "argument"))


def test_the_network_is_used_in_named_places_only() -> None:
    assert allowed(places(NETWORK), CONNECTS) == set()


def test_nothing_that_can_run_what_it_loads_is_imported() -> None:
    assert places(LOADERS) == set()


def test_text_is_evaluated_in_named_places_only() -> None:
    found = {
        file
        for file, tree in sources().items()
        for name, _ in called(tree)
        if name in ("eval", "exec", "compile")
    }
    assert allowed(found, EVALUATES) == set()


def test_modules_are_imported_by_name_in_named_places_only() -> None:
    names = (
        "import_module",
        "importlib.import_module",
        "__import__",
        "importlib.util.spec_from_file_location",
    )
    found = {file for file, tree in sources().items() for name, _ in called(tree) if name in names}
    assert allowed(found, IMPORTS_BY_NAME) == set()


def test_yaml_is_loaded_in_one_place_by_a_safe_loader() -> None:
    for file, tree in sources().items():
        for name, call in called(tree):
            if name.startswith("yaml.") and "load" in name:
                assert file == "capacity/inputs/text_files.py", (file, call.lineno)
    text = (ROOT / "capacity" / "inputs" / "text_files.py").read_text()
    assert "class Loader(yaml.SafeLoader)" in text


def test_remote_code_is_trusted_nowhere() -> None:
    for file, tree in sources().items():
        for name, call in called(tree):
            for keyword in call.keywords:
                if keyword.arg == "trust_remote_code":
                    assert not (isinstance(keyword.value, ast.Constant) and keyword.value.value), (
                        file,
                        name,
                        call.lineno,
                    )


def test_the_tables_name_only_what_is_there() -> None:
    for table in (RUNS_PROGRAMS, MAKES_PROCESSES, CONNECTS, EVALUATES, IMPORTS_BY_NAME):
        for name in table:
            assert (ROOT / name).exists(), name
