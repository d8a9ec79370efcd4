#!/usr/bin/env bash
# Prints the PCI functions of a machine with an IOMMU, as a real kernel groups them: the fixture of the tests of IOMMU groups.
#
#   scripts/iommu-guest.sh > crates/site/tests/fixtures/iommu-guest.txt
#
# A guest under QEMU (software emulation) boots a Debian kernel with an emulated Intel IOMMU and four kinds of place for a display
# adapter, which stands in for a GPU (*simulated*): alone behind a root port; two behind a switch; one that
# shares its card with a sound function; two on a conventional bus behind a bridge. What is printed is what the kernel makes of it,
# one function a line: address, class, group or `-`, driver or `-`.
#
# Needs qemu-system-x86_64, a static busybox, cpio, and the kernel that `scripts/test-cgroup2.sh` unpacks; about a minute.
set -euo pipefail
cache=${FORGEYARD_GUEST_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/forgeyard/guest}
kernel=$(compgen -G "$cache/kernel/boot/vmlinuz-*" | head -n 1 || true)
[ -n "$kernel" ] || { echo 'iommu-guest: no kernel; run scripts/test-cgroup2.sh once' >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder"/tree/{bin,proc,sys}
cp /bin/busybox "$folder/tree/bin/busybox"
cat > "$folder/tree/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys
last() { [ -e "$1" ] && $b basename "$($b readlink "$1")" || echo -; }
echo; echo "kernel $($b uname -r)"
for d in /sys/bus/pci/devices/*; do
    echo "function ${d##*/} $($b cat "$d/class") $(last "$d/iommu_group") $(last "$d/driver")"
done
$b poweroff -f
INIT
chmod +x "$folder/tree/init"
(cd "$folder/tree" && find . | cpio -o -H newc --quiet) > "$folder/initramfs"
timeout "${FORGEYARD_GUEST_LIMIT:-600}" qemu-system-x86_64 -accel tcg,thread=multi -M q35,kernel-irqchip=split -cpu max -m 512 \
    -nographic -vga none -nic none -no-reboot -kernel "$kernel" -initrd "$folder/initramfs" \
    -append 'console=ttyS0 panic=-1 quiet intel_iommu=on' -device intel-iommu,intremap=on \
    -device pcie-root-port,id=alone,chassis=1,slot=1 -device bochs-display,bus=alone \
    -device pcie-root-port,id=switch,chassis=2,slot=2 -device x3130-upstream,id=up,bus=switch \
    -device xio3130-downstream,id=one,bus=up,chassis=3,slot=3 -device xio3130-downstream,id=two,bus=up,chassis=4,slot=4 \
    -device bochs-display,bus=one -device bochs-display,bus=two \
    -device pcie-root-port,id=card,chassis=5,slot=5 \
    -device bochs-display,bus=card,addr=0.0,multifunction=on -device intel-hda,bus=card,addr=0.1 \
    -device pcie-root-port,id=old,chassis=6,slot=6 -device pcie-pci-bridge,id=bus,bus=old \
    -device secondary-vga,bus=bus,addr=1 -device secondary-vga,bus=bus,addr=2 < /dev/null |
    tr -d '\r' | sed -n 's/^kernel /# Linux /p; s/^function //p'
