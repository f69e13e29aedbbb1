#!/usr/bin/env bash
# Installs the wheel into a Debian 12 root that holds python3 and nothing else beside the essential packages, made by mmdebstrap
# from the mirrors that apt knows, and lets a script of six lines ask a model there. The same with other interpreters of this
# machine, each in a fresh venv.
#   tools/test_wheel.sh [BUILD] [PYTHON...]   BUILD is "build"; keeps the root's archive and what pip fetched in .cache/wheel
# Needs root and mmdebstrap. The model is SmolLM2 where `celer pull` fetched it, else one with random weights.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/phases.sh
build="${1:-build}"
[ $# = 0 ] || shift
folder="$PWD/.cache/wheel"
for program in mmdebstrap unshare chroot; do
  command -v "$program" >/dev/null || { echo "there is no $program; apt-get install -y mmdebstrap util-linux coreutils" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "needs root: it makes a system and enters it by chroot" >&2; exit 1; }
python="${PYTHON:-.venv/bin/python}"
mkdir -p "$folder"
log="$folder/log"
: > "$log"
fail() { tail -n 40 "$log" >&2; echo "failed: $*; the whole log: $log" >&2; exit 1; }

phase_begin wheel
tools/wheel.sh "$build" >>"$log" 2>&1 || fail "tools/wheel.sh"
wheel="$(echo "$build"/wheels/celer-*.whl)"
phase_end "$(basename "$wheel"), $(stat -c %s "$wheel" | numfmt --to=si)B"

phase_begin root
if [ ! -f "$folder/debian-12-python3.tar" ]; then
  sources=()
  for file in /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list; do [ -f "$file" ] && sources+=("$file"); done
  mmdebstrap --mode=root --variant=minbase --include=python3 bookworm "$folder/part.tar" "${sources[@]}" >>"$log" 2>&1 || fail mmdebstrap
  mv "$folder/part.tar" "$folder/debian-12-python3.tar"
fi
root="$(mktemp -d "$folder/root.XXXXXX")"
trap 'rm -rf --one-file-system "$root"' EXIT
tar -x -C "$root" -f "$folder/debian-12-python3.tar"
version="$(chroot "$root" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
phase_end "Debian 12 with Python $version and $(chroot "$root" dpkg-query -f '.\n' -W | wc -l) packages"

phase_begin fetch
# The root reaches no index by itself: no certificates, no resolver. pip is a wheel, too, that runs as it is.
mkdir -p "$folder/wheels"
"$python" -m pip download -q --disable-pip-version-check --only-binary=:all: --python-version "$version" -d "$folder/wheels" pip "$wheel" \
  >>"$log" 2>&1 || fail "pip download: is the package index reachable?"
mkdir "$root/wheels"
cp "$folder"/wheels/*.whl "$root/wheels/"
rm -f "$root"/wheels/celer-*.whl
cp "$wheel" tests/golden/networks/mixed.onnx "$root/wheels/"
real="${CELER_CACHE:-$HOME/.cache/celer}/models/SmolLM2-135M-Instruct.Q4_1.gguf"
[ ! -f "$real" ] || cp "$real" "$root/wheels/model.gguf"
phase_end "$(find "$root/wheels" -name '*.whl' | wc -l) wheels"

# What a user does. A process of the root sees /proc as every process does.
inside() { unshare --mount --pid --fork chroot "$root" sh -c 'mount -t proc proc /proc 2>/dev/null; exec "$@"' sh "$@"; }
cat > "$root/wheels/ask.py" <<'EOF'
import sys, celer
model = celer.load(sys.argv[1], context=512)
answer = (model.chat if model.tokenizer.has_chat_template() else model.generate)(sys.argv[2], max_tokens=24, temperature=0)
for text in answer:
    print(text, end="", flush=True)
print(f"\n{len(answer.token_ids)} tokens, {answer.finish_reason}")
EOF
cat > "$root/wheels/more.py" <<'EOF'
import subprocess, sys, time
began = time.perf_counter()
import celer
print(f"import celer: {time.perf_counter() - began:.3f} s")
session = celer.InferenceSession("/wheels/mixed.onnx" if len(sys.argv) < 3 else sys.argv[2])
print(f"a network with {len(session.get_inputs())} inputs")
try:
    celer.load(sys.argv[1], device="cuda")
    sys.exit("device='cuda' was not refused")
except ValueError as error:
    print("device='cuda':", error)
EOF
question="What is the capital of France? Answer in one sentence."
check() {  # what it said
  local said="$1"
  if [ -f "$real" ]; then [[ "$said" == *Paris* ]] || fail "the answer is '$said'"; fi
  [[ "$said" =~ [0-9]+\ tokens,\ (stop|length) ]] || fail "the answer is '$said'"
}
synth=(synth smollm2-135m --weights q8_0 --layers 2 --hidden 64 --intermediate 96 --vocab 512 --heads 2 --kv-heads 1 --head-dim 32)

phase_begin bare
inside python3 -m venv --without-pip /venv >>"$log" 2>&1 || fail "python3 -m venv --without-pip"
pip="$(cd "$root/wheels" && echo pip-*.whl)"
inside /venv/bin/python "/wheels/$pip/pip" install --no-index --find-links /wheels celer >>"$log" 2>&1 || fail "pip install"
[ -f "$root/wheels/model.gguf" ] || inside /venv/bin/celer "${synth[@]}" -o /wheels/model.gguf >>"$log" 2>&1 || fail "celer synth"
said="$(inside /venv/bin/python /wheels/ask.py /wheels/model.gguf "$question" 2>>"$log")" || fail "ask.py in the root"
check "$said"
more="$(inside /venv/bin/python /wheels/more.py /wheels/model.gguf 2>&1)" || { echo "$more" >> "$log"; fail "more.py in the root"; }
phase_end "Python $version: $(tr '\n' ' ' <<< "$said")"
printf '%s\n' "$more"

for other in "$@"; do
  phase_begin venv
  rm -rf "$folder/venv"
  "$other" -m venv "$folder/venv" >>"$log" 2>&1 || fail "$other -m venv"
  "$folder/venv/bin/pip" install -q --disable-pip-version-check "$wheel" >>"$log" 2>&1 || fail "pip install with $other"
  said="$(cd "$root" && "$folder/venv/bin/python" "$root/wheels/ask.py" "$root/wheels/model.gguf" "$question" 2>>"$log")" || fail "ask.py with $other"
  check "$said"
  more="$(cd "$root" && "$folder/venv/bin/python" "$root/wheels/more.py" "$root/wheels/model.gguf" "$root/wheels/mixed.onnx" 2>&1)" || { echo "$more" >> "$log"; fail "more.py with $other"; }
  phase_end "Python $("$other" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])'): $(tr '\n' ' ' <<< "$said")"
  printf '%s\n' "$more"
done
