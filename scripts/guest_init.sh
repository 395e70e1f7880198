#!/bin/busybox sh
# The first process of the guests. With root= in the kernel's arguments it goes on with the system on that disk. Without,
# it runs the script of its seed (user-data), then powers off. The script's output is the console's. The power button
# ends the script with SIGTERM, and the guest powers off when the script has ended.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/base); do
    insmod /modules/$module
done
disk=$(sed -n 's/.*root=\([^ ]*\).*/\1/p' /proc/cmdline)
if [ -n "$disk" ]; then
    mount -t ext4 "$disk" /root
    umount /proc /sys
    mount --move /dev /root/dev
    exec switch_root /root /sbin/init
fi
stty -F /dev/ttyS0 -opost 2>/dev/null
seed=
for disk in /dev/vd?; do
    mount -t iso9660 -o ro "$disk" /mnt 2>/dev/null && seed=$disk && break
done
if [ -n "$seed" ]; then
    # Meta-data has the names and values under "shoal", one in a line.
    sed -n 's/^ *"\(SHOAL_[A-Z_]*\)": "\(.*\)",\{0,1\}$/export \1="\2"/p' /mnt/meta-data >/tmp/identity
    . /tmp/identity
    if grep -q '^# needs: network' /mnt/user-data; then
        for module in $(cat /modules/network); do insmod /modules/$module; done
        ip link set lo up
        ip link set eth0 up
        ip addr add 10.0.2.15/24 dev eth0
    fi
    cp /mnt/user-data /tmp/script
    sh /tmp/script </dev/null 2>&1 &
    main=$!
    exec 2>/dev/null # the shell says how a child ended, and the console is the script's
    echo "$main" >/tmp/main
    mkdir -p /etc/acpi/PWRF /var/run
    printf '#!/bin/sh\nkill -TERM $(cat /tmp/main)\n' >/etc/acpi/PWRF/00000080
    chmod 755 /etc/acpi/PWRF/00000080
    acpid -d >/dev/null 2>&1 &
    while kill -0 "$main" 2>/dev/null; do wait "$main"; done
fi
stty -F /dev/ttyS0 -opost # returns when everything was sent
poweroff -f
