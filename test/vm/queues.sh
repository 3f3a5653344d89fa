# Several disks in one guest: one with one queue, one with two, one read-only.
#
#   queues.sh SERIAL-A SERIAL-B SHA256-OF-C
. /job/blk.sh

read_only() {
	[ "$(cat /sys/block/vdc/ro)" = 1 ]
	! dd if=/dev/zero of=/dev/vdc bs=4k count=1 status=none 2>/tmp/error || { echo "it can be written"; return 1; }
}

# The kernel's own check stands before the device's; switched off, the device must refuse.
read_only_forced() {
	blockdev --setrw /dev/vdc
	! dd if=/dev/zero of=/dev/vdc oflag=direct bs=4k count=1 status=none 2>/tmp/error ||
		{ echo "the device took a write"; return 1; }
}

same_content() { # SHA256
	[ "$(dd if=/dev/vdc iflag=direct bs=1M status=none | sha256sum | cut -d' ' -f1)" = "$1" ]
}

for d in vda vdb vdc; do
	wait_for_disk $d
done
blk_all vda 1 "$1"
blk_all vdb 2 "$2"
check "vdc: read-only" read_only
check "vdc: content" same_content "$3"
check "vdc: a forced write is refused" read_only_forced
check "vdc: content is as before" same_content "$3"
finish
