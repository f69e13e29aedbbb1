#!/usr/bin/env bash
# `make run`: measures this machine once, fetches a small model once, lets it answer a question, and says what this machine could do
# at best with three models.
set -euo pipefail
celer="$1"
question="${QUESTION:-Why is the sky blue? Answer in two sentences.}"
"$celer" probe --device cpu >/dev/null   # cached after the first time
if model="$("$celer" pull smollm2)"; then
  printf '\n> %s\n' "$question"
  "$celer" run "$model" "$question"
fi
for name in smollm2-135m llama-3.2-1b llama-3.1-8b; do
  echo
  "$celer" limits --model "$name" --machine this --brief
done
