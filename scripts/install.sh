#!/usr/bin/env bash
# Installs what Forgeyard needs on Debian and Ubuntu, and nothing that is there already.
#
#   scripts/install.sh [--tests] [--check]
#
#   --tests   also what the tests need: PostgreSQL, Chromium and its driver, Python's headers
#   --check   install nothing; say what is missing and end with 1 if something is
#
# Asks for sudo only if something is missing and the caller is not root. Starts no service. With nothing missing it
# needs no network and takes no time. Rust is checked and not installed: the script says how to get it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tests='' check=''
for argument in "$@"; do
    case $argument in
        --tests) tests=1 ;;
        --check) check=1 ;;
        -h|--help) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) printf 'install: unknown option %s (see --help)\n' "$argument" >&2; exit 2 ;;
    esac
done

PATH=$PATH:/usr/sbin:/sbin
command_found() { command -v "$1" >/dev/null 2>&1; }
# shellcheck disable=SC2086 # a pattern is meant to expand
file_found() { compgen -G "$1" >/dev/null; }
python_can() { /usr/bin/python3 -c "$1" >/dev/null 2>&1; }
browser_found() { command_found chromium || command_found chromium-browser || command_found google-chrome; }
python_headers_found() {
    python_can 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")'
}

# package, what it is for, how to see that it (or a stand-in for it) is there
things=(
    "runc|containers of jobs|command_found runc"
    "conmon|watching containers over a restart|command_found conmon"
    "git|sources|command_found git"
    "python3|the conda build engine|file_found /usr/bin/python3"
    "python3-venv|the conda build engine|python_can 'import ensurepip, venv'"
    "g++|builds|command_found g++"
    "make|builds|command_found make"
    "pkg-config|builds|command_found pkg-config"
    "ocl-icd-opencl-dev|OpenCL programs|file_found '/usr/lib/*/libOpenCL.so'"
    "opencl-headers|OpenCL programs|file_found /usr/include/CL/cl.h"
    "pocl-opencl-icd|a simulated GPU on the CPU|file_found '/etc/OpenCL/vendors/pocl*.icd'"
    "clinfo|looking at OpenCL devices|command_found clinfo"
    "zstd|looking into packages|command_found zstd"
)
if [ -n "$tests" ]; then
    things+=(
        "postgresql|tests of the database|file_found '/usr/lib/postgresql/*/bin/postgres'"
        "chromium|tests of the console|browser_found"
        "chromium-driver|tests of the console|command_found chromedriver"
        "python3-dev|the PyOpenCL example|python_headers_found"
    )
fi

missing=()
for thing in "${things[@]}"; do
    IFS='|' read -r package purpose probe <<< "$thing"
    if eval "$probe"; then
        printf '%-20s found\n' "$package"
    else
        printf '%-20s missing (%s)\n' "$package" "$purpose"
        missing+=("$package")
    fi
done

if [ ${#missing[@]} -gt 0 ] && [ -n "$check" ]; then
    printf 'install: %s missing\n' "${#missing[@]}" >&2
    exit 1
fi

if [ ${#missing[@]} -gt 0 ]; then
    command_found apt-get || {
        printf 'install: this machine has no apt-get; install by hand: %s\n' "${missing[*]}" >&2
        exit 1
    }
    sudo=()
    if [ "$(id -u)" != 0 ]; then
        command_found sudo || { printf 'install: run as root: apt-get install %s\n' "${missing[*]}" >&2; exit 1; }
        sudo=(sudo)
    fi
    # Services stay off while packages are set up: the farm starts what it needs itself.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee $policy >/dev/null
        "${sudo[@]}" chmod 755 $policy
        trap '"${sudo[@]}" rm -f $policy' EXIT
    fi
    apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"; }
    began=$SECONDS
    apt update >/dev/null || printf 'install: apt-get update failed; going on with the lists that are there\n' >&2
    apt install --yes --no-install-recommends "${missing[@]}" >/dev/null || {
        printf 'install: apt-get could not install: %s\n' "${missing[*]}" >&2
        printf 'install: (Ubuntu has chromium only as a snap: install any Chromium and its chromedriver by hand)\n' >&2
        exit 1
    }
    printf '%-20s installed in %s s\n' "${missing[*]}" "$((SECONDS - began))"
fi

# The toolchain is the user's own; the repository names the version and rustup fetches it when it is not there.
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/../Cargo.toml" | head -n 1)
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
how="install rustup (package rustup of newer Debian and Ubuntu, or as the Rust project describes), then: rustup toolchain install $wanted"
if ! command_found rustc || ! command_found cargo; then
    printf '%-20s missing\ninstall: Rust %s or later is needed: %s\n' rust "$wanted" "$how" >&2
    exit 1
fi
found=$(cd "$here/.." && rustc --version 2>/dev/null | awk '{ print $2 }')
if [ "$(printf '%s\n%s\n' "$wanted" "${found:-0}" | sort -V | head -n 1)" != "$wanted" ]; then
    printf '%-20s %s is too old\ninstall: Rust %s or later is needed: %s\n' rust "${found:-unknown}" "$wanted" "$how" >&2
    exit 1
fi
printf '%-20s found (%s)\n' rust "$found"
