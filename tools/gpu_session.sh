#!/usr/bin/env bash
# One session of recorded runs on a GPU machine where this package is not installed: vLLM's own environment is on
# PYTHONPATH already (SITE, default /tmp/site), the package is used from the checkout through links.
#
# usage: tools/gpu_session.sh MATRIX BUDGET [OUT]     from the root of the checkout
#
# Records accumulate in STATE (default /tmp/vllm-capacity-runs), so that a second call resumes; OUT gets the records,
# the engine's logs and, when small enough, the kernels that were compiled.
set -uo pipefail
matrix=$1 budget=$2 out=${3:-${OUT:-/tmp/out}}
site=${SITE:-/tmp/site} state=${STATE:-/tmp/vllm-capacity-runs} links=${LINKS:-/tmp/vllm-capacity-links}
mkdir -p "$state" "$out" "$links/vllm_capacity"
ln -sfn "$PWD"/capacity/* "$links/vllm_capacity/"
ln -sfn "$PWD/validate" "$links/vllm_capacity/validate"
ln -sfn "$PWD/models.yaml" "$links/vllm_capacity/models.yaml"
# records of an earlier session, brought along
if [ ! -f "$state/records.jsonl" ] && [ -f .gpu/records/records.jsonl ]; then cp .gpu/records/records.jsonl "$state/"; fi
for archive in .gpu/records/kernels.tgz; do [ -f "$archive" ] && tar -C "$HOME" -xzf "$archive"; done
export PYTHONPATH="$links:$site" PYTHONUNBUFFERED=1
# NVLink multicast stays off on shared hosts
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
nvidia-smi --query-gpu=index,name,memory.total,memory.used,driver_version --format=csv
python3 -m vllm_capacity.validate --matrix "$matrix" --budget "$budget" --records "$state/records.jsonl" \
  --work "$state/work" 2>&1
status=$?
cp "$state/records.jsonl" "$out/" 2>/dev/null
tar -C "$state/work" -czf "$out/logs.tgz" logs 2>/dev/null
if [ "${PACK_KERNELS:-0}" = 1 ]; then
  (cd "$HOME" && timeout 60 tar --exclude='*.o' -czf "$out/kernels.tgz" .cache/flashinfer .triton 2>/dev/null)
  [ "$(stat -c %s "$out/kernels.tgz" 2>/dev/null || echo 0)" -gt 16000000 ] && rm -f "$out/kernels.tgz"
fi
ls -l "$out"
exit $status
