#!/usr/bin/env bash
# The clients and routers that are too large for `make test`, in a venv of their own (about 1 GB under .cache):
#   tools/test_clients.sh build
set -euo pipefail
cd "$(dirname "$0")/.."
celer="${1:-build}/celer"
[ -x "$celer" ] || { echo "there is no $celer; make build makes it" >&2; exit 1; }
venv=.cache/clients
stamp="$(cksum < tests/server/requirements-clients.txt)"
if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r tests/server/requirements-clients.txt
  echo "$stamp" > "$venv/stamp"
fi
failed=0
for script in more_clients_test routers_test deploy_files_test; do
  "$venv/bin/python" "tests/server/$script.py" "$celer" -v || [ $? = 77 ] || failed=1
done
exit $failed
