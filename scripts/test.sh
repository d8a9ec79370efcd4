#!/usr/bin/env bash
# Installs what the tests need and passes all of them. Arguments go to `cargo test`, before its `--`.
#
# A test that cannot run here says `SKIPPED: reason` and passes; how many and why is printed at the end. Set
# FORGEYARD_REQUIRE_POSTGRES=1, FORGEYARD_REQUIRE_SANDBOX=1, FORGEYARD_REQUIRE_BROWSER=1 to let them fail instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/steps.sh
. scripts/steps.sh
# shellcheck source=scripts/engine-dir.sh
. scripts/engine-dir.sh
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
FORGEYARD_ENGINE=$(engine_dir)
export FORGEYARD_ENGINE

step "system packages" scripts/install.sh --tests
step "conda build engine" scripts/install-engine.sh
step "clients of the cache" scripts/install-clients.sh
step "compile the tests" cargo test --locked --workspace --no-run "$@"
step "compile the programs" cargo build --locked --package forgeyard --package forgeyard-agent

log=$FORGEYARD_STEPS/test.log
all_tests() {
    # --show-output: a skipped test passes, and its reason must be seen
    cargo test --locked --workspace --no-fail-fast "$@" -- --show-output 2>&1 | tee "$log" | { grep --line-buffered -v '^---- .* stdout ----$' || true; }
    return "${PIPESTATUS[0]}"
}
status=0
step "tests" all_tests "$@" || status=$?
grep -o 'SKIPPED: .*' "$log" | sort | uniq -c | sort -rn > "$FORGEYARD_STEPS/skipped" || true
step "soak of the cache" cargo xtask soak cache 60 || status=$?
step "tests of the job steps" env PYTHONDONTWRITEBYTECODE=1 "$FORGEYARD_ENGINE/bin/python" tests/steps/test_steps.py || status=$?
exit $status
