#!/bin/sh
# Starts Forgejo's own runner program for one job: the `program` of a pool whose jobs come from a Forgejo.
#
# The farm hands over one word in ACTIONS_RUNNER_INPUT_JITCONFIG: base64 of lines `name value` (url, uuid, token, labels,
# handle; see crates/forges/src/forgejo/handover.rs). The token goes into a file that only this user reads.
#
# NEVER RUN with the real program: its options are taken from public documents (Forgejo runner 12 and later).
set -eu

word=${ACTIONS_RUNNER_INPUT_JITCONFIG:?no handover: this is started by the farm}
unset ACTIONS_RUNNER_INPUT_JITCONFIG
program=${FORGEJO_RUNNER:-/opt/forgejo-runner/forgejo-runner}
text=$(printf '%s' "$word" | base64 -d)
value() { printf '%s\n' "$text" | sed -n "s/^$1 //p"; }
[ "$(printf '%s\n' "$text" | head -n 1)" = 'forgejo 1' ] || { echo 'forgejo-runner: the handover is none' >&2; exit 1; }

umask 077
folder=$(mktemp -d)
value token > "$folder/token"
set -- one-job --url "$(value url)" --uuid "$(value uuid)" --token-url "file://$folder/token" --wait
handle=$(value handle)
[ -z "$handle" ] || set -- "$@" --handle "$handle"
for label in $(value labels | tr ',' ' '); do
    set -- "$@" --label "$label"
done
cd "$folder"
exec "$program" "$@"
