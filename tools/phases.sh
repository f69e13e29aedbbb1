# Sourced by the scripts of `make run` and `make test`: one line per phase, "build      223 steps (150 s)".
# On a terminal the line changes while the phase goes on; elsewhere only its end is printed.

phase_begin() {  # name
  phase_name="$1"
  phase_start=$SECONDS
  [ ! -t 2 ] || printf '%-10s ' "$phase_name" >&2
}
phase_update() {  # text
  [ ! -t 2 ] || printf '\r\033[K%-10s %s' "$phase_name" "$1" >&2
}
phase_end() {  # text
  [ ! -t 2 ] || printf '\r\033[K' >&2
  printf '%-10s %s (%d s)\n' "$phase_name" "$1" $((SECONDS - phase_start)) >&2
}
