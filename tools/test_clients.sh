#!/usr/bin/env bash
# The clients and routers that are too large for `make test`, in venvs of their own (about 1.5 GB under .cache):
#   tools/test_clients.sh build
set -euo pipefail
cd "$(dirname "$0")/.."
celer="${1:-build}/celer"
[ -x "$celer" ] || { echo "there is no $celer; make build makes it" >&2; exit 1; }
# Makes .cache/NAME out of tests/server/requirements-NAME.txt.
venv() {
  local stamp
  stamp="$(cksum < "tests/server/requirements-$1.txt")"
  if [ "$(cat ".cache/$1/stamp" 2>/dev/null)" != "$stamp" ]; then
    python3 -m venv ".cache/$1"
    ".cache/$1/bin/pip" install -q --disable-pip-version-check -r "tests/server/requirements-$1.txt"
    echo "$stamp" > ".cache/$1/stamp"
  fi
}
failed=0
run() {  # venv, script
  ".cache/$1/bin/python" "tests/server/$2.py" "$celer" -v || [ $? = 77 ] || failed=1
}
venv clients
for script in more_clients_test routers_test deploy_files_test; do run clients "$script"; done
# It needs another openai than the rest.
venv llama-index
run llama-index more_clients_test
exit $failed
