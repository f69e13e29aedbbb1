#!/usr/bin/env bash
# On a machine with a GPU, in about three minutes: what celer plan predicts beside what celer bench measures, and how long a server
# takes to give its weights back and to have them again.
#   tools/gpu_fleet.sh OUT [BUILD] [TRACES]     TRACES: a folder with Azure's AzureLLMInferenceTrace_{conv,code}.csv
set -uo pipefail
cd "$(dirname "$0")/.."
out="${1:?where the figures go}"
celer="${2:-build}/celer"
traces="${3:-shared/data/traces}"
mkdir -p "$out"
begin=$SECONDS

echo "== celer plan beside celer bench: throughput, TTFT and TPOT within 15 %"
if [ -f "$traces/AzureLLMInferenceTrace_conv.csv" ]; then
  python3 tests/plan/against_bench.py "$celer" random:llama-3.1-8b --gpu h200 --chunk 2048 --runs 1 --seconds 12 --most-busy 1000 --traces \
    "$traces/AzureLLMInferenceTrace_conv.csv:0.4" "$traces/AzureLLMInferenceTrace_conv.csv:0.7" "$traces/AzureLLMInferenceTrace_code.csv:0.5" \
    --json "$out/plan.json" 2>&1 | tee "$out/plan.txt"
else
  echo "skipped: there are no traces in $traces"
fi
echo "plan: $((SECONDS - begin)) s"

echo "== sleep and wake, Llama-3.1-8B int8 (CELER_FLEET_WEIGHTS=bf16 for 16 bits)"
weights="${CELER_FLEET_WEIGHTS:-q8_0}"
model="${TMPDIR:-/tmp}/celer-8b-$weights.gguf"
begin=$SECONDS
[ -f "$model" ] || "$celer" synth llama-3.1-8b --weights "$weights" -o "$model" || exit 1
echo "synth: $((SECONDS - begin)) s"
"$celer" serve "$model" --port 8991 --enable-sleep-mode --device cuda --context 4096 --kv-memory 8GiB --served-model-name m 2> "$out/serve.log" &
server=$!
trap 'kill $server 2>/dev/null' EXIT
for _ in $(seq 300); do curl -sf http://127.0.0.1:8991/health > /dev/null && break; sleep 0.2; done
ask() {
  curl -s http://127.0.0.1:8991/v1/completions --json '{"model": "m", "prompt": [1, 2, 3, 4, 5], "max_tokens": 16, "temperature": 0, "return_token_ids": true}' |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["choices"][0]["token_ids"])'
}
memory() { nvidia-smi --query-gpu=memory.used --format=csv,noheader; }
before="$(ask)"
{
  echo "awake: $(memory)"
  for level in 1 2; do
    curl -s -o /dev/null -w "sleep level $level: %{time_total} s, status %{http_code}\n" -X POST "http://127.0.0.1:8991/sleep?level=$level"
    echo "asleep: $(memory)"
    curl -s -o /dev/null -w "wake_up: %{time_total} s, status %{http_code}\n" -X POST http://127.0.0.1:8991/wake_up
    echo "awake: $(memory)"
  done
  [ "$(ask)" = "$before" ] && echo "the same tokens as before" || echo "OTHER TOKENS than before"
} 2>&1 | tee "$out/sleep.txt"
kill $server
wait $server
echo "all of it: $SECONDS s"
