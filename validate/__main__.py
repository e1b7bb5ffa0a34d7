"""`python -m vllm_capacity.validate`: the command `validate` where no entry point is installed."""

import sys

from vllm_capacity.cli import run

if __name__ == "__main__":
    sys.exit(run(["validate", *sys.argv[1:]]))
