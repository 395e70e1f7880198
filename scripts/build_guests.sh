#!/usr/bin/env bash
# Builds the two guests that the tests of VMs boot, in the cache directory of the user, unless they are there:
#   vmlinux, initrd              a kernel and a busybox, which boot in two seconds: `init` runs the script of its seed
#   debian.qcow2                 a Debian with cloud-init, sshd and the guest agent; the same kernel and initrd boot it
# Needs root and the Debian packages mmdebstrap, busybox-static, cpio, lz4, e2fsprogs and qemu-utils. Prints where.
set -euo pipefail

version=3
guests="${XDG_CACHE_HOME:-$HOME/.cache}/shoal/guests-$version"
mkdir -p "$(dirname "$guests")"
exec 9>"$guests.lock"
flock 9
if [ -e "$guests/complete" ]; then
    echo "$guests"
    exit 0
fi
here=$(cd "$(dirname "$0")" && pwd)
part="$guests.part"
rm -rf "$part" "$guests"
mkdir -p "$part"
root="$part/root"

packages=systemd-sysv,cloud-init,openssh-server,ifupdown,isc-dhcp-client,netbase,iproute2,e2fsprogs
packages=$packages,linux-image-cloud-amd64,udev,qemu-guest-agent,dbus
mmdebstrap --quiet --variant=minbase --include="$packages" \
    --aptopt='Acquire::Languages "none"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    bookworm "$root" >&2

# Debian.
# Fewer modules of cloud-init: each costs seconds without KVM.
cat >"$root/etc/cloud/cloud.cfg.d/90_shoal.cfg" <<'CONFIG'
datasource_list: [ NoCloud ]
cloud_init_modules: [write-files, disk_setup, mounts, set_hostname, users-groups, ssh]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user, final-message]
CONFIG
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
    fstrim.timer systemd-timesyncd.service systemd-pstore.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
rm -f "$root"/etc/ssh/ssh_host_*
kernel=$(basename "$(ls -d "$root"/lib/modules/*)")
cp "$root/boot/vmlinuz-$kernel" "$part/vmlinuz"

# The small guest: the same kernel, without its compression, which takes longest to undo without KVM.
python3 - "$part/vmlinuz" <<'PYTHON' | lz4 -q -d >"$part/vmlinux" 2>/dev/null || true
import sys
image = open(sys.argv[1], "rb").read()
sys.stdout.buffer.write(image[image.index(b"\x02\x21\x4c\x18") :])
PYTHON
[ -s "$part/vmlinux" ] || cp "$part/vmlinuz" "$part/vmlinux"
small="$part/small"
mkdir -p "$small"/{bin,proc,sys,dev,mnt,root,tmp,etc/acpi,modules}
cp "$(command -v busybox)" "$small/bin/busybox"
cp "$here/guest_init.sh" "$small/init"
chmod 755 "$small/init"
# With everything that they need, in the order that this kernel needs it: that differs from one kernel to the next.
python3 "$here/guest_modules.py" "$root/lib/modules/$kernel" "$small/modules" \
    base=virtio_pci,virtio_blk,isofs,evdev,button network=virtio_net
(cd "$small" && find . | cpio --quiet -o -H newc) >"$part/initrd"

rm -rf "$root"/boot/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
truncate -s 1500M "$part/disk.raw"
mke2fs -q -t ext4 -L root -d "$root" "$part/disk.raw"
qemu-img convert -O qcow2 "$part/disk.raw" "$part/debian.qcow2"
rm -rf "$root" "$small" "$part/disk.raw"
touch "$part/complete"
mv "$part" "$guests"
echo "$guests"
