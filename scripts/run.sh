#!/usr/bin/env bash
# The first thing to try: installs what is missing, builds, and runs the tour. Arguments go to `forgeyard tour`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/steps.sh
. scripts/steps.sh
# shellcheck source=scripts/engine-dir.sh
. scripts/engine-dir.sh
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
FORGEYARD_ENGINE=$(engine_dir)
export FORGEYARD_ENGINE

step "system packages" scripts/install.sh
step "conda build engine" scripts/install-engine.sh
step "compile" cargo build --locked --package forgeyard --package forgeyard-agent
step "tour" "${CARGO_TARGET_DIR:-target}/debug/forgeyard" tour "$@"
