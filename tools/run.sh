#!/usr/bin/env bash
# `make run`: measures this machine once, fetches a small model once, and lets it answer a question.
set -euo pipefail
celer="$1"
question="${QUESTION:-Why is the sky blue? Answer in two sentences.}"
"$celer" probe --device cpu >/dev/null || true   # cached; without it the answer comes all the same, without its limit
if model="$("$celer" pull smollm2)"; then
  echo "> $question"
  "$celer" run "$model" "$question"
  echo
fi
"$celer" limits --model smollm2-135m --machine this
