# What blk.sh does, then a reboot in the middle of things: what was synced must be there after it.
#
#   reboot.sh DISK QUEUES SERIAL RING
#
# The host counts the boots (a marker on the disk could be lost with the rest).
. /job/blk.sh

before_reboot() { # DISK
	blk_mount "$1"
	(cd /mnt && dd if=/dev/urandom of=last bs=64k count=40 conv=fsync status=none && sha256sum last >>sums)
	sync
	dd if=/dev/zero of=/mnt/unsynced bs=1M count=4 status=none	# in the page cache only: no matter
}

wait_for_disk "$1"
case $(ask boot) in
1)
	blk_all "$@"
	check "$1: mount and write before the reboot" before_reboot "$1"
	[ $failed = 0 ] || finish
	echo "guest: rebooting"
	reboot -f
	;;
2)
	check "$1: $4 rings after the reboot" blk_ring "$1" "$4"
	check "$1: $2 queues after the reboot" blk_queues "$1" "$2"
	check "$1: mount after the reboot" blk_mount "$1"
	check "$1: checksums after the reboot" blk_verify
	check "$1: umount after the reboot" umount /mnt
	check "$1: fsck after the reboot" blk_fsck "$1"
	finish
	;;
*)
	echo "booted once too often"
	exit 1
	;;
esac
