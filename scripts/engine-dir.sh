# Where the conda build engine lives. Sourced by other scripts; a job machine must be able to see the folder, so it
# is never below /root.
engine_dir() {
    if [ -n "${FORGEYARD_ENGINE:-}" ]; then
        printf '%s\n' "$FORGEYARD_ENGINE"
    elif [ "$(id -u)" = 0 ]; then
        printf '/opt/forgeyard/engine\n'
    else
        printf '%s\n' "${XDG_DATA_HOME:-$HOME/.local/share}/forgeyard/engine"
    fi
}
