# Named steps with times. Sourced by run.sh, test.sh and .ci/run.
#
#   step NAME COMMAND…   runs the command and notes how long it took and how it ended
#   report               prints the table; only the outermost script prints, nested ones add their rows to it
#
# A failing step ends the script; its table is printed all the same.

if [ -z "${FORGEYARD_STEPS:-}" ]; then
    FORGEYARD_STEPS=$(mktemp -d)
    export FORGEYARD_STEPS
    : > "$FORGEYARD_STEPS/times"
    steps_outermost=1
    trap 'steps_status=$?; report; rm -rf "$FORGEYARD_STEPS"; exit $steps_status' EXIT
else
    steps_outermost=
fi

step() {
    local name=$1 began ended status=0
    shift
    printf '\n== %s\n' "$name"
    began=$(date +%s%N)
    "$@" || status=$?
    ended=$(date +%s%N)
    printf '%s\t%s\t%s\n' "$name" "$(((ended - began) / 1000000))" "$([ $status = 0 ] && echo done || echo "failed ($status)")" \
        >> "$FORGEYARD_STEPS/times"
    return $status
}

report() {
    [ -n "$steps_outermost" ] || return 0
    [ -s "$FORGEYARD_STEPS/times" ] || return 0
    printf '\nwhere the time went\n'
    awk -F '\t' '{ printf "  %-28s %8.1f s  %s\n", $1, $2 / 1000, $3; all += $2 } END { printf "  %-28s %8.1f s\n", "all", all / 1000 }' \
        "$FORGEYARD_STEPS/times"
    if [ -f "$FORGEYARD_STEPS/skipped" ]; then
        printf '\nskipped tests: %s\n' "$(awk '{ n += $1 } END { print n + 0 }' "$FORGEYARD_STEPS/skipped")"
        sed 's/^/  /' "$FORGEYARD_STEPS/skipped"
    fi
}
