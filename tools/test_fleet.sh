#!/usr/bin/env bash
# The tests of tests/fleet with everything that may stand before celer serve, in a venv of their own (about 1.5 GB under .cache):
#   tools/test_fleet.sh build [--minutes 30]     of the soak test; else one minute
set -euo pipefail
cd "$(dirname "$0")/.."
celer="${1:-build}/celer"
shift || true
[ -x "$celer" ] || { echo "there is no $celer; make build makes it" >&2; exit 1; }
venv="${CELER_FLEET_VENV:-.cache/fleet}"
stamp="$(cksum < tests/fleet/requirements.txt)"
if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r tests/fleet/requirements.txt
  echo "$stamp" > "$venv/stamp"
fi
# vLLM's production-stack is on GitHub alone, and has a Python package of the same name as vllm-router.
stack="${CELER_PRODUCTION_STACK:-.cache/production-stack}"
if [ ! -x "$stack/venv/bin/python" ]; then
  mkdir -p "$stack"
  if git clone -q --depth 1 https://github.com/vllm-project/production-stack "$stack/clone" 2> /dev/null; then
    rm -rf "$stack/src" && mv "$stack/clone/src" "$stack/src" && rm -rf "$stack/clone"
    python3 -m venv "$stack/venv"
    "$stack/venv/bin/pip" install -q --disable-pip-version-check aiofiles fastapi aiohttp kubernetes numpy prometheus-client python-multipart "sentry-sdk[fastapi]" \
      uhashring==2.3 uvicorn xxhash==3.5.0 psutil pyyaml opentelemetry-api opentelemetry-sdk opentelemetry-exporter-otlp
  else
    echo "without production-stack's router: GitHub is not reached"
  fi
fi
failed=()
run() {
  echo "== $*"
  "$venv/bin/python" "tests/fleet/$1" "$celer" "${@:2}" || [ $? = 77 ] || failed+=("$1")
}
run resume_test.py --all
run rolling_test.py --all
run disagg_test.py
run routers_test.py
run mooncake_test.py "${CELER_MOONCAKE_TRACE:-shared/data/traces/mooncake_conversation_trace.jsonl.gz}"
run overload_test.py
run soak_test.py "$@"
run ray_test.py
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
