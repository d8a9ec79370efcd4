#!/usr/bin/env bash
# Puts GitHub's own runner program where pools of runners look for it, from an archive that you name.
#
#   scripts/install-runner.sh ARCHIVE VERSION SHA256 [DIR]
#
#   ARCHIVE   the release for Linux of this machine's architecture, a .tar.gz: a file or an address
#   VERSION   its version, for example 2.330.0
#   SHA256    its digest in hexadecimal, as its publisher states it
#   DIR       where to put it; without one, /opt/actions-runner
#
# An image of kind `host` shows the folder with `allow = ["/opt/actions-runner"]`; for an image of kind `rootfs` run this
# while the tree is built, with DIR in the tree. The forge stops accepting old versions: build the image anew with a newer
# one before that, and let its alias point there. The program itself is never run as root and never updates itself in a
# machine.
#
# The program wants to write beside its own files, and the root of a machine is read-only. So DIR/run.sh is a start of ours:
# it copies the program (not its large `externals`, which it links) to /work/runner and starts it there. The copy counts
# against the disk limit of the flavor.
#
# NEVER RUN HERE with the real program: the developers of this script had none. What was run is this script with an
# archive made by hand, and machines with a simulated runner program.
set -euo pipefail

die() { printf 'install-runner: %s\n' "$*" >&2; exit 1; }
case ${1:-} in -h|--help|'') sed -n '2,22s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; [ -n "${1:-}" ]; exit ;; esac
if [ $# -lt 3 ] || [ $# -gt 4 ]; then die "needs ARCHIVE VERSION SHA256 [DIR] (see --help)"; fi
archive=$1 version=$2 digest=${3,,} dir=${4:-/opt/actions-runner}

[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "\`$version\` is no version: three numbers with dots"
[[ $digest =~ ^[0-9a-f]{64}$ ]] || die "\`$digest\` is no SHA-256 digest: 64 hexadecimal digits"
case $dir in
    /*) ;;
    *) dir=$PWD/$dir ;;
esac
case $dir/ in
    /root/*|/home/*|/proc/*|/sys/*|/dev/*|/run/*) die "$dir is a place that no job machine sees; choose another folder" ;;
esac
stamp=$dir/.forgeyard-runner
wanted="$version $digest"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    printf 'runner: %s is at %s already\n' "$dir" "$version"
    exit 0
fi
if [ -e "$dir" ] && [ ! -f "$stamp" ] && [ -n "$(ls -A "$dir")" ]; then
    die "$dir exists and was not made by this script; name another folder or remove it"
fi

mkdir -p "$(dirname "$dir")" || die "cannot make $(dirname "$dir"): run as root or name another folder"
work=$(mktemp -d "$(dirname "$dir")/.install-runner.XXXXXX")
trap 'rm -rf "$work"' EXIT
case $archive in
    *://*)
        command -v curl >/dev/null || die "curl is missing; fetch the archive by hand and name the file"
        curl --fail --location --silent --show-error --proto '=https' --output "$work/archive" "$archive" \
            || die "cannot fetch $archive"
        archive=$work/archive
        ;;
    *) [ -f "$archive" ] || die "there is no file $archive" ;;
esac
found=$(sha256sum < "$archive")
[ "${found%% *}" = "$digest" ] || die "the archive has the digest ${found%% *} and not $digest: nothing was installed"

umask 022
mkdir -p "$work/new/dist"
tar -xzf "$archive" -C "$work/new/dist" --no-same-owner
listener=$work/new/dist/bin/Runner.Listener
if [ ! -x "$work/new/dist/run.sh" ] || [ ! -x "$listener" ]; then
    die "the archive holds no run.sh and bin/Runner.Listener"
fi
said=$("$listener" --version 2>/dev/null) \
    || die "the program does not start: run its bin/installdependencies.sh on the host or in the tree, then this again"
[ "$said" = "$version" ] || die "the program says that it is $said and not $version"

cat > "$work/new/run.sh" <<'START'
#!/bin/sh
# Starts the runner program in a folder that it may write. Made by scripts/install-runner.sh.
set -eu
from=$(cd "$(dirname "$0")" && pwd)/dist
to=${FORGEYARD_RUNNER_HOME:-/work/runner}
mkdir -p "$to"
for entry in "$from"/* "$from"/.[!.]*; do
    case $entry in
        */externals) ln -s "$entry" "$to/externals" ;;
        *) [ ! -e "$entry" ] || cp -R "$entry" "$to/" ;;
    esac
done
cd "$to"
exec ./run.sh "$@"
START
chmod 755 "$work/new/run.sh"
chmod -R a+rX "$work/new"
printf '%s\n' "$wanted" > "$work/new/.forgeyard-runner"
rm -rf "$dir"
mv "$work/new" "$dir"
printf 'runner: %s is ready, version %s\n' "$dir" "$version"
