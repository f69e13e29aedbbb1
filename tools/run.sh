#!/usr/bin/env bash
# `make run` after the build: measures this machine once, fetches a small model once, lets it answer a question, and says
# what this machine could do at best with three models.
set -euo pipefail
. "$(dirname "$0")/phases.sh"
celer="$1"
question="${QUESTION:-Why is the sky blue? Answer in two sentences.}"
phase_begin machine
"$celer" probe --device cpu >/dev/null   # cached after the first time
phase_end measured
phase_begin model
said="$(mktemp)"
trap 'rm -f "$said"' EXIT
# On a terminal the download draws a line of its own.
if model="$("$celer" pull smollm2 2> >(if [ -t 2 ]; then tee "$said" >&2; else cat > "$said"; fi))"; then
  phase_end "$model"
  printf '\n> %s\n' "$question"
  "$celer" run "$model" "$question"
else
  phase_end "could not be fetched"
  cat "$said" >&2
fi
for name in smollm2-135m llama-3.2-1b llama-3.1-8b; do
  echo
  "$celer" limits --model "$name" --machine this --brief
done
