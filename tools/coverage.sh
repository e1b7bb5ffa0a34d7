#!/bin/sh
# Line coverage of capacity/ (web/ aside) by its quick tests, those that run in one process: fails below pyproject.toml's share.
# Left out are the tests that start servers, browsers and engines, that fill disks, and that take times.
set -eu
cd "$(dirname "$0")/.."
COVERAGE_FILE=$(mktemp -d)/coverage
export COVERAGE_FILE
trap 'rm -rf "$(dirname "$COVERAGE_FILE")"' EXIT
python -m coverage run -m pytest -p no:cacheprovider \
  tests/activations tests/architecture tests/cli tests/diagnosis tests/engine tests/inputs tests/kv_cache tests/logs \
  tests/overheads tests/releases tests/sizing tests/weights tests/test_budget.py tests/test_flags_in_plans.py \
  tests/test_plan_against_golden.py tests/test_plan_against_vllm.py tests/test_whole_plan_properties.py
python -m coverage report
