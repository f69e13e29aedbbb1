#!/usr/bin/env bash
# `make run`: measure this machine once, then say what it could do at best with three models.
set -euo pipefail
celer="$1"
"$celer" probe
for model in smollm2-135m llama-3.2-1b llama-3.1-8b; do
  echo
  "$celer" limits --model "$model" --machine this --brief
done
