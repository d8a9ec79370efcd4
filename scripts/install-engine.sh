#!/usr/bin/env bash
# Installs the conda build engine into a folder of its own, which job machines see read-only at the same path.
#
#   scripts/install-engine.sh [DIR]
#
# DIR defaults to $FORGEYARD_ENGINE, else /opt/forgeyard/engine for root and ~/.local/share/forgeyard/engine for
# everybody else. The interpreter is always /usr/bin/python3, because a job machine sees /usr and nothing of a home
# folder. Says nothing is to be done, in milliseconds, when the engine is there in the wanted versions. A folder
# that is half made (an interrupted run) is made again.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
requirements=$here/engine-requirements.txt
python=/usr/bin/python3

die() { printf 'install-engine: %s\n' "$*" >&2; exit 1; }

# shellcheck source=scripts/engine-dir.sh
. "$here/engine-dir.sh"
dir=${1:-$(engine_dir)}
case $dir in /*) ;; *) dir=$PWD/$dir ;; esac
case $dir/ in
    /root/*) die "$dir lies below /root, which no job machine can see; choose another folder" ;;
    /usr/*|/bin/*|/lib/*|/etc/*|/proc/*|/sys/*|/dev/*) die "$dir lies in a system folder; choose another folder" ;;
esac

[ -x $python ] || die "$python is missing: install the package python3 (scripts/install.sh does)"
$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
    || die "$($python --version) is too old: the engine needs Python 3.10 or later in $python"

# The stamp holds what was installed and with which interpreter; it is written last, so that it vouches for all.
wanted="$($python --version) $(sha256sum < "$requirements" | cut -d' ' -f1)"
stamp=$dir/.forgeyard-engine
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -x "$dir/bin/python" ]; then
    printf 'engine: %s is up to date\n' "$dir"
    exit 0
fi

if [ -e "$dir" ] && [ ! -f "$dir/pyvenv.cfg" ] && [ -n "$(ls -A "$dir")" ]; then
    die "$dir exists and is not an engine folder; name another one or remove it"
fi
$python -c 'import ensurepip, venv' 2>/dev/null \
    || die "$python cannot make virtual environments: install the package python3-venv (scripts/install.sh does)"

started=$SECONDS
umask 022
mkdir -p "$(dirname "$dir")" || die "cannot make $(dirname "$dir"): run as root or set FORGEYARD_ENGINE to a folder of yours"
rm -rf "$dir"
$python -m venv "$dir" || die "cannot make a virtual environment in $dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all: --require-hashes \
    --requirement "$requirements" \
    || die "pip could not fetch the wheels of $requirements; the lines above say why"
"$dir/bin/python" -c 'import rattler, rattler_build' || die "the installed engine does not start; the lines above say why"
# Job machines run as another user and may not write: compile once here.
"$dir/bin/python" -m compileall -q "$dir/lib" >/dev/null || true
chmod -R a+rX "$dir"
printf '%s\n' "$wanted" > "$stamp"
printf 'engine: %s is ready (%s s)\n' "$dir" "$((SECONDS - started))"
