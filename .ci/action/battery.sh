#!/usr/bin/env bash
# What the action runs: the battery on $PLUGIN, and the tests in $TESTS if there are any. A list is parted by blanks.
# The summary goes to $GITHUB_STEP_SUMMARY; the exit status is pytest's.
set -uo pipefail

read -r -d '' -a plugins <<<"${PLUGIN:?which file or module registers the variants}" || true
read -r -d '' -a tests <<<"${TESTS:-}" || true
# Without tests of their own, pytest would look for some everywhere.
[ ${#tests[@]} -gt 0 ] || tests=("$(mktemp -d)")
targets=()
for plugin in "${plugins[@]}"; do targets+=(--attention "$plugin"); done

summary=$(mktemp)
python -m pytest -v --rootdir . "${targets[@]}" --attention-examples "${EXAMPLES:-60}" --attention-seed "${SEED:-0}" \
  --attention-summary "$summary" "${tests[@]}"
status=$?
cat "$summary" >>"${GITHUB_STEP_SUMMARY:-/dev/stdout}"
echo "summary=$summary" >>"${GITHUB_OUTPUT:-/dev/null}"
exit $status
