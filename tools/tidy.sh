#!/usr/bin/env bash
# clang-tidy with the checks of .clang-tidy; a finding is an error.
#   tools/tidy.sh --changed    files that differ from the upstream branch, or from the commit before where there is none;
#                              for `make test`. At most TIDY_FILES of them (24); the rest is named and left to `make tidy`.
#   tools/tidy.sh --all        every file that this machine compiles (about an hour on 2 cores)
#   tools/tidy.sh FILE...      these files
# BUILD-tidy holds the compile commands, one for each file: the usual build compiles files in groups.
set -euo pipefail
cd "$(dirname "$0")/.."
folder="${BUILD:-build}-tidy"

changed() {
  local base
  base="$(git merge-base HEAD '@{upstream}' 2>/dev/null || true)"
  if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then base="$(git rev-parse -q --verify HEAD~1 || echo HEAD)"; fi
  { git diff --name-only --diff-filter=d "$base"; git ls-files -o --exclude-standard; } | sort -u
}
case "${1:-}" in
  --changed) mapfile -t wanted < <(changed) ;;
  --all) mapfile -t wanted < <(git ls-files -co --exclude-standard -- 'src/*' 'tests/*' 'bench/*' 'examples/*') ;;
  '') echo "usage: tools/tidy.sh --changed | --all | FILE..." >&2; exit 2 ;;
  *) wanted=("$@") ;;
esac

log="$folder.log"
cmake --preset default -B "$folder" -DCELER_CUDA=OFF -DCELER_UNITY=OFF > "$log" 2>&1 || { cat "$log"; exit 1; }

# A header is read with the source file of its name. Files that this machine does not compile have no command.
compiled="$(sed -n 's/^ *"file": "\(.*\)".*/\1/p' "$folder/compile_commands.json" | sort -u)"
mapfile -t files < <(for file in "${wanted[@]}"; do
  case "$file" in *.h) file="${file%.h}.cc" ;; *.cc) ;; *) continue ;; esac
  grep -qxF "$(realpath -m "$file")" <<< "$compiled" && echo "$file"
done | sort -u)

if [ "$1" = --changed ] && [ "${#files[@]}" -gt "${TIDY_FILES:=24}" ]; then
  echo "clang-tidy: ${#files[@]} files changed, $TIDY_FILES of them are checked; make tidy checks all"
  mapfile -t files < <(printf '%s\n' "${files[@]}" | shuf -n "$TIDY_FILES" --random-source=<(yes "$(git rev-parse HEAD)") | sort)
fi
if [ "${#files[@]}" = 0 ]; then echo "clang-tidy: no file changed"; exit 0; fi

# Options of g++ that clang does not know are no finding, nor is a constant that only the CUDA code reads.
if ! printf '%s\0' "${files[@]}" | xargs -0 -P "${JOBS:-$(nproc)}" -n 1 \
    clang-tidy -p "$folder" --quiet --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unused-const-variable > "$log" 2>&1; then
  grep -vE '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header-filter' "$log" >&2
  exit 1
fi
echo "clang-tidy: ok (${#files[@]} files)"
