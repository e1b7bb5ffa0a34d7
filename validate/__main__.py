"""`python -m vllm_capacity.validate`: the command `validate` without an installed entry point."""

from vllm_capacity.cli.validate import command

if __name__ == "__main__":
    command()
