#!/usr/bin/env bash
# Runs the sandbox tests on a real kernel with cgroup v2 alone, whatever this machine has.
#
#   scripts/test-cgroup2.sh [FILTER...]
#
# A guest under QEMU (software emulation, so slow) boots a Debian kernel. Its root is this machine's own file system,
# shared read-only and covered by memory, so the guest runs the same `runc`, the same tests and the same programs, and
# nothing it writes stays. FILTER names tests; without one, those of `crates/agent/tests/sandbox.rs` and the conformance
# suite of the provider run.
#
# Needs root, a Debian or Ubuntu of x86-64, 6 GB of memory, and the network the first time (kernel package, QEMU).
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache=${FORGEYARD_GUEST_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/forgeyard/guest}
mkdir -p "$cache"
virtiofsd=''
for program in /usr/lib/qemu/virtiofsd /usr/libexec/virtiofsd; do
    [ -x "$program" ] && virtiofsd=$program
done
missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
[ -n "$virtiofsd" ] || missing+=(qemu-system-common)
[ -x /bin/busybox ] && file -L /bin/busybox 2>/dev/null | grep -q 'static' || missing+=(busybox-static)
command -v cpio >/dev/null || missing+=(cpio)
command -v file >/dev/null || missing+=(file)
command -v depmod >/dev/null || missing+=(kmod)
if [ ${#missing[@]} -gt 0 ]; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >&2
    for program in /usr/lib/qemu/virtiofsd /usr/libexec/virtiofsd; do
        [ -x "$program" ] && virtiofsd=$program
    done
fi

# The kernel of Debian's cloud images, unpacked and not installed.
kernel=$(compgen -G "$cache/kernel/boot/vmlinuz-*" | head -n 1 || true)
if [ -z "$kernel" ]; then
    package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image-/ { print $2; exit }')
    [ -n "$package" ] || { echo 'test-cgroup2: there is no package linux-image-cloud-amd64; is this Debian?' >&2; exit 1; }
    rm -rf "$cache/download" && mkdir -p "$cache/download"
    (cd "$cache/download" && apt-get download -q "$package" >&2)
    dpkg-deb -x "$cache"/download/*.deb "$cache/kernel"
    rm -rf "$cache/download"
    kernel=$(compgen -G "$cache/kernel/boot/vmlinuz-*" | head -n 1)
fi
version=${kernel##*/vmlinuz-}

# What the guest starts with: busybox, and the modules that its root needs.
tree=$cache/initramfs
rm -rf "$tree" && mkdir -p "$tree"/{bin,proc,sys,dev,host,memory,root,modules}
cp /bin/busybox "$tree/bin/busybox"
depmod -b "$cache/kernel" "$version"
order=$tree/modules/order
: > "$order"
for module in virtio_pci virtiofs overlay veth; do
    modprobe -d "$cache/kernel" -S "$version" --show-depends "$module" | awk '$1 == "insmod" { print $2 }' |
        while read -r path; do
            grep -qxF "${path##*/}" "$order" && continue
            cp "$path" "$tree/modules/"
            echo "${path##*/}" >> "$order"
        done
done
cat > "$tree/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
while read -r module; do $b insmod "/modules/$module" || echo "guest: no module $module"; done < /modules/order
$b mount -t virtiofs -o ro host /host || { echo 'guest: the file system of the host cannot be mounted'; $b poweroff -f; }
$b mount -t tmpfs -o size=3g memory /memory
$b mkdir /memory/upper /memory/work
$b mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work root /root
for folder in proc sys dev; do $b mount --move /$folder /root/$folder; done
# Sandboxes lay overlays of their own, which must not lie on an overlay.
for folder in tmp var/tmp run; do $b mount -t tmpfs -o mode=1777 tmp /root/$folder; done
$b mkdir -p /root/dev/pts /root/dev/shm
$b mount -t devpts pts /root/dev/pts; $b mount -t tmpfs shm /root/dev/shm
$b mount -t cgroup2 cgroup2 /root/sys/fs/cgroup
$b ip link set lo up
run=$($b sed -n 's/.*forgeyard\.run=\([^ ]*\).*/\1/p' /root/proc/cmdline)
# Not chroot: in one, the kernel refuses new user namespaces.
exec $b switch_root /root /bin/bash "$run"
INIT
chmod +x "$tree/init"
(cd "$tree" && find . | cpio -o -H newc --quiet) > "$cache/initramfs.cpio"

echo 'test-cgroup2: compiling the tests' >&2
mapfile -t programs < <(
    cargo test --quiet --no-run --message-format=json -p forgeyard-agent --test sandbox -p forgeyard-providers --test conformance |
        python3 -c 'import json, sys
for line in sys.stdin:
    said = json.loads(line)
    if said.get("profile", {}).get("test") and said.get("executable") and said["target"]["kind"] == ["test"]:
        print(said["manifest_path"].rsplit("/", 1)[0] + " " + said["executable"])'
)
cargo build --quiet -p forgeyard-agent
agent=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')/debug/forgeyard-agent
run=$cache/run.sh
{
    echo '#!/bin/bash'
    echo 'export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8'
    echo 'export FORGEYARD_REQUIRE_SANDBOX=1 RUST_TEST_THREADS=1'
    printf 'export FORGEYARD_AGENT=%q\n' "$agent"
    echo 'echo "guest: $(uname -r), controllers of cgroup v2: $(cat /sys/fs/cgroup/cgroup.controllers)"'
    # As systemd does it: processes are in leaves, so that controllers can be given on.
    echo 'mkdir /sys/fs/cgroup/init.scope && echo $$ > /sys/fs/cgroup/init.scope/cgroup.procs'
    echo 'for c in $(cat /sys/fs/cgroup/cgroup.controllers); do echo "+$c" > /sys/fs/cgroup/cgroup.subtree_control; done'
    echo 'failed=0'
    for program in "${programs[@]}"; do
        read -r folder path <<< "$program"
        printf 'cd %q && %q --nocapture' "$folder" "$path"
        [ $# -eq 0 ] || printf ' %q' "$@"
        echo ' || failed=1'
    done
    echo 'echo "guest: ended with $failed"; sync; /bin/busybox poweroff -f'
} > "$run"

socket=$(mktemp -u "${TMPDIR:-/tmp}/forgeyard-guest-XXXXXX.sock")
log=$cache/console.log
"$virtiofsd" --socket-path="$socket" -o source=/ -o sandbox=chroot -o cache=always > "$cache/virtiofsd.log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$socket"' EXIT
for _ in $(seq 100); do [ -S "$socket" ] && break; sleep 0.1; done
echo "test-cgroup2: booting $version under emulation" >&2
timeout "${FORGEYARD_GUEST_LIMIT:-2400}" qemu-system-x86_64 -accel tcg,thread=multi -M q35 -cpu max -smp 2 -m 5120 \
    -object memory-backend-memfd,id=memory,size=5120M,share=on -numa node,memdev=memory \
    -nographic -nic none -no-reboot -kernel "$kernel" -initrd "$cache/initramfs.cpio" \
    -chardev socket,id=host,path="$socket" -device vhost-user-fs-pci,chardev=host,tag=host \
    -append "console=ttyS0 panic=-1 quiet cgroup_no_v1=all forgeyard.run=$run" < /dev/null | tee "$log"
grep -q 'guest: ended with 0' "$log"
