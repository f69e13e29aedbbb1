#!/usr/bin/env bash
# What a build of everything needs beside a compiler, CMake and Python, for a machine that reaches no package index, such as many
# with a GPU. Debian's packages of this machine are packed; they work on any x86-64 Linux with glibc 2.36 or newer that has
# Debian's folders, such as Ubuntu 24.04.
#   tools/offline_packages.sh OUT.tar.xz [PYTHON]  packs; PYTHON is an interpreter of the version that the other machine has
#   tools/offline_packages.sh --unpack FILE        there, as root: adds what is not there yet to / and /opt/celer
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = --unpack ]; then
  # Python has lzma where no xz is installed.
  python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$2" |
    tar -C / --no-same-owner --skip-old-files -x
  ldconfig
  exit
fi
out="$(realpath "$1")"
python=.venv/bin/python
theirs="${2:-$python}"
version="$("$theirs" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
packages=(libpcre2-dev libpcre2-8-0 libsentencepiece-dev libsentencepiece0 libfmt-dev libfmt9 libspdlog-dev libspdlog1.10 libcli11-dev
  nlohmann-json3-dev libssl-dev zlib1g-dev libxxhash-dev libxxhash0 libstb-dev libstb0 libboost1.74-dev libzmq3-dev libmsgpack-cxx-dev libgtest-dev libgmock-dev libbenchmark-dev libbenchmark1debian
  pkg-config pkgconf pkgconf-bin libpkgconf3)
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/opt/celer"
"$python" -m pip install -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version "$version" --target "$work/opt/celer/site" \
  "$(grep -m1 '^nanobind==' tools/requirements.txt)" "$(grep -m1 '^nanobind-backend==' tools/requirements.txt)" "$(grep -m1 '^tqdm==' tools/requirements.txt)"
# CMake wants the headers of the interpreter's own version, though the module keeps to the stable ABI.
cp -r "$("$theirs" -c 'import sysconfig; print(sysconfig.get_path("include"))')" "$work/opt/celer/include"
dpkg -L "${packages[@]}" | grep -E '^/usr/(bin|include|lib|share/(cmake|pkgconfig))/' | sort -u |
  while IFS= read -r path; do if [ -f "$path" ] || [ -L "$path" ]; then echo "${path#/}"; fi; done > "$work/list"
tar -C / --no-recursion -T "$work/list" -cf "$work/all.tar"
tar -C "$work" --owner=0 --group=0 -rf "$work/all.tar" opt
xz -T0 -4 "$work/all.tar"
mv "$work/all.tar.xz" "$out"
ls -l "$out" | awk '{ printf "%s  %.1f MB\n", $NF, $5 / 1e6 }'
