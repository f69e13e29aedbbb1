#!/usr/bin/env bash
# Installs what a build and its tests need: Debian packages, and a Python venv under .venv for the test references.
# Idempotent: does nothing when everything is there. Says clearly what it cannot reach.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ make cmake ninja-build ccache pkg-config git xz-utils clang-format python3 python3-venv
  libcli11-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libboost-dev libpcre2-dev libsentencepiece-dev libssl-dev
  libgtest-dev libgmock-dev libbenchmark-dev)

say() { printf 'setup: %s\n' "$*" >&2; }

missing=()
if command -v dpkg-query >/dev/null; then
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
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
  say "installing ${missing[*]}"
  log="$(mktemp)"
  install() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1; }
  # The package lists of a fresh machine may be empty or stale: refresh them once if the first try fails.
  if ! install; then
    $sudo apt-get update -qq >>"$log" 2>&1 || say "apt-get update could not reach every source; trying with the lists at hand"
    install || { tail -n 5 "$log" >&2; say "could not install: ${missing[*]}; is the package mirror reachable?"; exit 1; }
  fi
  rm -f "$log"
fi

# The venv is stamped with its requirements, so that a change of them is noticed.
stamp="$(cat tools/requirements.txt "$(readlink -f "$0")" | cksum)"
if [ "$(cat .venv/stamp 2>/dev/null)" != "$stamp" ]; then
  say "making .venv with the test references"
  python3 -m venv .venv
  if .venv/bin/pip install -q --disable-pip-version-check -r tools/requirements.txt; then
    echo "$stamp" > .venv/stamp
  else
    say "could not install tools/requirements.txt into .venv: tests that compare with Python packages will fail;"
    say "is the Python package index reachable? (the program itself does not need it)"
  fi
fi
