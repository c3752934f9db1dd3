#!/bin/busybox sh
# The guest's first process: put a writable layer over the shared root, run the one command, say how it ended.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
if $b grep -qw wellfed_lab_probe /proc/cmdline; then
    echo "lab: this guest boots"
    $b poweroff -f
fi
while read -r module; do $b insmod "/mod/$module"; done </mod/order
options=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o "ro,cache=loose,$options" hostroot /mnt/ro || { echo "lab: the shared root does not mount"; $b poweroff -f; }
$b mount -t tmpfs -o size=50% tmpfs /mnt/rw
$b mkdir /mnt/rw/upper /mnt/rw/work
$b mount -t overlay -o lowerdir=/mnt/ro,upperdir=/mnt/rw/upper,workdir=/mnt/rw/work overlay /new
$b mkdir -p /new/proc /new/sys /new/dev /new/lab /new/run /new/tmp
for each in proc sys dev; do $b mount --move "/$each" "/new/$each"; done
$b mkdir -p /new/dev/pts /new/dev/shm
$b mount -t devpts devpts /new/dev/pts
$b mount -t tmpfs -o mode=1777 tmpfs /new/dev/shm
$b mount -t tmpfs tmpfs /new/run
$b mount -t tmpfs -o mode=1777 tmpfs /new/tmp
$b mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
$b mount -t debugfs debugfs /new/sys/kernel/debug 2>/dev/null
$b mount -t 9p -o "rw,cache=none,$options" lab /new/lab
# What the command needs and a fresh /tmp or /run would hide: the checkout and its interpreter, wherever they lie.
while read -r path; do
    [ -n "$path" ] && $b mkdir -p "/new$path" && $b mount --bind "/mnt/ro$path" "/new$path"
done </new/lab/bound
# A modules folder of the host's own release would be another kernel's.
release=$($b uname -r)
$b mkdir -p "/new/lib/modules/$release"
$b mount --bind "/mnt/ro$($b cat /new/lab/kernel_root)/lib/modules/$release" "/new/lib/modules/$release"
$b ip link set lo up
$b hostname lab
read -r up _ </new/proc/uptime
echo "$up" >/new/lab/boot_seconds
$b chroot /new /bin/bash /lab/command >/new/lab/stdout 2>/new/lab/stderr </dev/null
echo $? >/new/lab/exit_code.unfinished
$b sync
$b mv /new/lab/exit_code.unfinished /new/lab/exit_code
$b poweroff -f
