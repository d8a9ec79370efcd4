#!/usr/bin/env bash
# Makes a recipe repository for PyOpenCL in a folder: its source distribution as published, the wheels it needs, and
# the recipe beside this script. The machine that builds has no network, so all that it needs is in the repository.
#
#   examples/pyopencl/prepare.sh DIR
#
# Fetches by package name with pip, as configured on this machine. Done again, it only fetches what is missing. With
# everything fetched it needs no network.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=2026.1.4
digest=6cb9544a004609061e86873fe36500da6c2101042e9c7b9c3b804a29a12b98bf

die() { printf 'prepare: %s\n' "$*" >&2; exit 1; }

dir=${1:?usage: prepare.sh DIR}
[ -f /usr/include/CL/cl.h ] || die "the OpenCL headers are missing: install opencl-headers and ocl-icd-opencl-dev"
/usr/bin/python3 -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' \
    || die "the headers of /usr/bin/python3 are missing: install python3-dev"
/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || die "/usr/bin/python3 cannot make virtual environments: install python3-venv"

mkdir -p "$dir/recipe" "$dir/source" "$dir/wheels"
cp "$here/recipe/recipe.yaml" "$dir/recipe/recipe.yaml"
cp "$here/requirements.txt" "$here/forgeyard.toml" "$dir/"

sdist=$dir/source/pyopencl-$version.tar.gz
check() { printf '%s  %s\n' "$digest" "$sdist" | sha256sum --check --status 2>/dev/null; }
want=$(sed -n 's/^\([A-Za-z0-9_-]*\)==.*/\1/p' "$here/requirements.txt" | wc -l)
have=$(find "$dir/wheels" -name '*.whl' | wc -l)
if ! check || [ "$have" -ne "$want" ]; then
    tools=$(mktemp -d)
    trap 'rm -rf "$tools"' EXIT
    /usr/bin/python3 -m venv "$tools/venv"
    pip=("$tools/venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input download)
    if ! check; then
        # Only PyOpenCL itself from source: asking for `:all:` would build every build tool as well.
        "${pip[@]}" --no-deps --no-binary pyopencl --dest "$dir/source" "pyopencl==$version" \
            || die "pip could not fetch the source distribution of PyOpenCL; the lines above say why"
        check || die "$sdist is not the file that was tried: its digest differs from $digest"
    fi
    if [ "$have" -ne "$want" ]; then
        rm -f "$dir"/wheels/*.whl
        "${pip[@]}" --no-deps --only-binary :all: --dest "$dir/wheels" --requirement "$here/requirements.txt" \
            || die "pip could not fetch the wheels of requirements.txt; the lines above say why"
    fi
fi
printf 'prepare: %s is ready (%s)\n' "$dir" "$(du -sh "$dir" | cut -f1)"
