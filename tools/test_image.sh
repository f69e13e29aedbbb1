#!/usr/bin/env bash
# Builds deploy/Dockerfile as it stands and asks the image a question, without a daemon and without a registry: buildah runs
# the steps in a chroot, and debian:12 is made here by mmdebstrap from the mirrors that apt knows. The image is built from
# the files that git knows, so nothing that lies about here gets into it.
#   tools/test_image.sh [folder]     keeps the base and the images in folder (.cache/image unless given); about 4 GB
# Needs root, buildah and mmdebstrap. BUILDAH_FLAGS goes to `buildah bud`, e.g. a compiler cache as a volume.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/phases.sh
folder="${1:-.cache/image}"
for program in buildah mmdebstrap curl git; do
  command -v "$program" >/dev/null || { echo "there is no $program; apt-get install -y buildah mmdebstrap curl git" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "needs root: it makes a system and enters it by chroot" >&2; exit 1; }
mkdir -p "$folder"
folder="$(readlink -f "$folder")"
log="$folder/log"
: > "$log"
images=(buildah --root "$folder/root" --runroot "$folder/run" --storage-driver vfs)
images() { "${images[@]}" "$@"; }
fail() { tail -n 40 "$log" >&2; echo "failed: $*; the whole log: $log" >&2; exit 1; }

if ! images inspect docker.io/library/debian:12-slim >/dev/null 2>&1; then
  phase_begin base
  if [ ! -f "$folder/debian-12.tar" ]; then
    # What Debian's own images hold: the essential packages, those of priority "required", and apt.
    sources=()
    for file in /etc/apt/sources.list.d/* /etc/apt/sources.list; do [ -f "$file" ] && sources+=("$file"); done
    # As they do, dpkg does without fsync in a container.
    mmdebstrap --mode=root --variant=minbase \
      --customize-hook='mkdir -p "$1/etc/dpkg/dpkg.cfg.d" && echo force-unsafe-io > "$1/etc/dpkg/dpkg.cfg.d/docker-apt-speedup"' \
      bookworm "$folder/part.tar" "${sources[@]}" >>"$log" 2>&1 || fail mmdebstrap
    mv "$folder/part.tar" "$folder/debian-12.tar"
  fi
  base="$(images from scratch)"
  images add -q "$base" "$folder/debian-12.tar" / >>"$log" 2>&1 || fail "buildah add"
  images config --cmd bash "$base"
  for tag in 12 12-slim; do images commit -q "$base" "docker.io/library/debian:$tag" >>"$log" 2>&1 || fail "buildah commit"; done
  images rm "$base" >/dev/null
  phase_end "debian:12 from $(stat -c %s "$folder/debian-12.tar" | numfmt --to=iec) of mmdebstrap's"
fi

phase_begin image
rm -rf "$folder/tree"
mkdir "$folder/tree"
git ls-files -z | tar -c --null -T - | tar -x -C "$folder/tree"
# shellcheck disable=SC2086  # several flags in one variable
images bud --format docker --isolation chroot --pull-never ${BUILDAH_FLAGS:-} -f "$folder/tree/deploy/Dockerfile" -t celer "$folder/tree" >>"$log" 2>&1 || fail "buildah bud"
phase_end "$(images images --format '{{.Size}}' localhost/celer)"

phase_begin question
# A model with random weights that the image's celer makes, as the image's user; SmolLM2 where it was fetched.
container="$(images from --pull-never localhost/celer)"
server=
clean() {
  [ -z "$server" ] || kill -- "-$server" 2>/dev/null || true
  wait
  images rm "$container" >/dev/null 2>&1 || true
}
trap clean EXIT
inside() { images run --isolation chroot "$@"; }
[ "$(inside "$container" -- id -u)" = 10001 ] || fail "it does not run as user 10001"
inside "$container" -- celer --version >>"$log" 2>&1 || fail "celer --version"
real="${CELER_CACHE:-$HOME/.cache/celer}/models/SmolLM2-135M-Instruct.Q4_1.gguf"
model=/var/cache/celer/tiny.gguf
mounts=()
if [ -f "$real" ]; then
  mounts=(-v "$(dirname "$real"):/models:ro")
  model="/models/$(basename "$real")"
else
  inside "$container" -- celer synth smollm2-135m --weights q8_0 --layers 2 --hidden 64 --intermediate 96 --vocab 512 --heads 2 \
    --kv-heads 1 --head-dim 32 -o "$model" >>"$log" 2>&1 || fail "celer synth"
fi
# The chroot has this machine's network, and the image's HEALTHCHECK asks port 8000.
! (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null || fail "port 8000 is taken"
setsid "${images[@]}" run --isolation chroot "${mounts[@]}" "$container" -- celer serve "$model" --host 0.0.0.0 --context 1024 --kv-memory 64MiB \
  >>"$log" 2>&1 &
server=$!
for ((i = 0; i < 600; ++i)); do
  curl -fsS http://127.0.0.1:8000/health >/dev/null 2>&1 && break
  kill -0 "$server" 2>/dev/null || fail "the server ended"
  sleep 0.5
done
health="$(sed -n 's/^HEALTHCHECK .* CMD //p' deploy/Dockerfile | python3 -c 'import json, sys; print(json.load(sys.stdin)[2])')"
inside "$container" -- bash -c "$health" >>"$log" 2>&1 || fail "the image's HEALTHCHECK"
ask() {  # path, body, where the text is
  curl -fsS "http://127.0.0.1:8000$1" -H 'Content-Type: application/json' -d "$2" |
    python3 -c "import json, sys; print(json.load(sys.stdin)['choices'][0]$3)"
}
question="What is the capital of France? Answer in one sentence."
if [ -f "$real" ]; then
  answer="$(ask /v1/chat/completions "{\"messages\": [{\"role\": \"user\", \"content\": \"$question\"}], \"max_tokens\": 24, \"temperature\": 0}" \
    "['message']['content']")" || fail "no answer"
  [[ "$answer" == *Paris* ]] || fail "the answer is '$answer'"
else
  answer="$(ask /v1/completions "{\"prompt\": \"$question\", \"max_tokens\": 24}" "['text']")" || fail "no answer"
fi
phase_end "$answer"
