#!/usr/bin/env bash
# Installs the Debian packages that are missing.
#   tools/setup.sh run     what it takes to build celer and fetch a small model
#   tools/setup.sh test    that, and what the tests need: more packages, and a Python venv under .venv
# Idempotent: does nothing when everything is there. Says clearly what it cannot reach.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/phases.sh
purpose="${1:-test}"

packages=(g++ make cmake ninja-build ccache pkg-config
  libcli11-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libpcre2-dev libsentencepiece-dev libssl-dev libboost-dev libedit-dev libxxhash-dev zlib1g-dev libstb-dev libzmq3-dev libmsgpack-cxx-dev)
# `celer pull smollm2` asks pip; any pip will do.
python3 -m pip --version >/dev/null 2>&1 || pip3 --version >/dev/null 2>&1 || packages+=(python3-pip)
if [ "$purpose" = test ]; then
  packages+=(git xz-utils clang-format clang-tidy python3 python3-dev python3-venv libgtest-dev libgmock-dev libbenchmark-dev dpkg-dev file mmdebstrap chromium)
fi

say() { printf 'setup: %s\n' "$*" >&2; }

phase_begin packages
missing=()
if command -v dpkg-query >/dev/null; then
  installed="$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' 2>/dev/null)"
  for package in "${packages[@]}"; do
    grep -qxF "installed $package" <<< "$installed" || missing+=("$package")
  done
else
  say "no dpkg here: make sure that the counterparts of these Debian packages are installed: ${packages[*]}"
fi

if [ ${#missing[@]} -gt 0 ]; then
  sudo=""
  if [ "$(id -u)" != 0 ]; then
    sudo="$(command -v sudo || true)"
    [ -n "$sudo" ] || { say "needs root for: apt-get install ${missing[*]}"; exit 1; }
  fi
  phase_update "installing ${#missing[@]}"
  log="$(mktemp)"
  install() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1; }
  # The package lists of a fresh machine may be empty or stale: refresh them once if the first try fails.
  if ! install; then
    $sudo apt-get update -qq >>"$log" 2>&1 || say "apt-get update could not reach every source; trying with the lists at hand"
    install || { tail -n 5 "$log" >&2; say "could not install: ${missing[*]}; is the package mirror reachable?"; exit 1; }
  fi
  rm -f "$log"
  phase_end "installed ${missing[*]}"
else
  phase_end "all here"
fi
[ "$purpose" = test ] || exit 0

# The venv is stamped with its requirements, so that a change of them is noticed.
stamp="$(cat tools/requirements.txt "$(readlink -f "$0")" | cksum)"
if [ "$(cat .venv/stamp 2>/dev/null)" != "$stamp" ]; then
  phase_begin python
  phase_update "making .venv with the test references"
  python3 -m venv .venv
  if .venv/bin/pip install -q --disable-pip-version-check -r tools/requirements.txt; then
    echo "$stamp" > .venv/stamp
    phase_end "made .venv with the test references"
  else
    phase_end failed
    say "could not install tools/requirements.txt into .venv: tests that compare with Python packages will fail;"
    say "is the Python package index reachable? (the program itself does not need it)"
  fi
fi

# nginx is unpacked into the venv, not installed: installing it would start a web server on this machine.
if ! [ -x .venv/unpacked/usr/sbin/nginx ] && ! PATH="$PATH:/usr/sbin" command -v nginx >/dev/null && command -v apt-get >/dev/null; then
  phase_begin nginx
  folder="$(mktemp -d)"
  fetch() { (cd "$folder" && apt-get download -qq nginx >/dev/null 2>&1 && dpkg-deb -x nginx_*.deb "$OLDPWD/.venv/unpacked"); }
  if fetch || { ${sudo:-} apt-get update -qq >/dev/null 2>&1 || true; fetch; }; then
    phase_end "unpacked under .venv"
  else
    phase_end "not reachable: the test of the balancers is skipped"
  fi
  rm -rf "$folder"
fi
