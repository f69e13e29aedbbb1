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
failed=()
run() {
  echo "== $*"
  "$venv/bin/python" "tests/fleet/$1" "$celer" "${@:2}" || [ $? = 77 ] || failed+=("$1")
}
run resume_test.py --all
run rolling_test.py --all
run routers_test.py
run overload_test.py
run soak_test.py "$@"
run ray_test.py
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
