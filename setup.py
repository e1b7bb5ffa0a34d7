"""Package mapping: `capacity/` installs as `vllm_capacity`, `validate/` as `vllm_capacity.validate`.

The mapping is computed, so that a new subpackage or folder of data can never be forgotten; `models.yaml` lives at
the top of the tree and is copied into the wheel beside the code that reads it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
TREES = {"vllm_capacity": "capacity", "vllm_capacity.validate": "validate"}


def packages() -> list[str]:
    """Every folder of both trees, those that hold only data included."""
    return [
        name
        for top, folder in TREES.items()
        for name in (top, *(f"{top}.{p}" for p in find_namespace_packages(folder, exclude=["*__pycache__*"])))
    ]


class BuildWithCatalogue(build_py):
    """Copies the catalogue into the package; an editable install reads it from the top of the tree instead.

    What an earlier build left behind is removed first: modules that the tree no longer has would travel in the wheel.
    """

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "vllm_capacity", ignore_errors=True)
        super().run()
        if not self.editable_mode:
            shutil.copyfile(ROOT / "models.yaml", Path(self.build_lib) / "vllm_capacity" / "models.yaml")


setup(
    packages=packages(),
    package_dir=dict(TREES),
    package_data={"": ["py.typed", "*.yaml", "*.json", "*.c", "*.gz", "*.j2", "*.css"]},
    cmdclass={"build_py": BuildWithCatalogue},
)
