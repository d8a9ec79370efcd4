#!/usr/bin/env bash
# Format, warnings, the graph of crates, the size of files, the document of the HTTP API.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/steps.sh
. scripts/steps.sh
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

step "format" cargo fmt --all --check
step "crate graph" cargo xtask graph
step "file sizes" cargo xtask size
step "warnings" cargo clippy --locked --workspace --all-targets -- -D warnings
step "warnings of the API document" cargo clippy --locked -p forgeyard-api --features openapi --all-targets -- -D warnings
step "API document" cargo xtask openapi --check
