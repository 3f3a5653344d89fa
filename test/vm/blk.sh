# Everything a guest does with a disk, on one that has nothing of value on it:
#
#   blk.sh DISK QUEUES SERIAL [RING]
#
# Leaves an ext4 file system with files and their checksums (see blk_verify), unmounted.
# Also a library for the other jobs, which source it.
. /job/lib.sh

# ---- the disk as the guest sees it --------------------------------------------------------------------------------

blk_queues() { # DISK QUEUES
	local n
	n=$(ls "/sys/block/$1/mq" | wc -l)
	[ "$n" = "$2" ] || { echo "$n queues, expected $2"; return 1; }
}

blk_serial() { # DISK SERIAL
	local serial
	serial=$(cat "/sys/block/$1/serial")
	[ "$serial" = "$2" ] || { echo "serial '$serial', expected '$2'"; return 1; }
}

# VIRTIO_F_RING_PACKED is bit 34 of what driver and device have agreed on.
blk_ring() { # DISK split|packed
	local features ring=split
	features=$(cat "/sys/block/$1/device/features")
	[ "${features:34:1}" = 0 ] || ring=packed
	[ "$ring" = "$2" ] || { echo "the rings are $ring ($features), expected $2"; return 1; }
}

# Which queues have had an interrupt: all of them, when I/O has come from all CPUs.
blk_queues_used() { # DISK QUEUES
	local device n
	device=$(basename "$(readlink -f "/sys/block/$1/device")")
	n=$(awk -v name="$device-req" 'index($NF, name) { n = 0; for (i = 2; i < NF; i++) n += $i; if (n) used++ }
		END { print used + 0 }' /proc/interrupts)
	[ "$n" = "$2" ] || { echo "$n of $2 queues have had interrupts"; grep "$device" /proc/interrupts; return 1; }
}

# ---- raw I/O ------------------------------------------------------------------------------------------------------

is_zero() { # DISK MIB-OFFSET MIB-LENGTH
	dd if="/dev/$1" iflag=direct bs=1M skip="$2" count="$3" status=none |
		cmp -s - <(dd if=/dev/zero bs=1M count="$3" status=none)
}

# 1 MiB at a time, as large as requests get.
blk_large_io() { # DISK
	dd if=/dev/urandom of=/tmp/large bs=1M count=8 status=none
	dd if=/tmp/large of="/dev/$1" oflag=direct bs=1M seek=1 status=none
	dd if="/dev/$1" iflag=direct bs=1M skip=1 count=8 status=none | cmp - /tmp/large
}

blk_write_zeroes() { # DISK: after blk_large_io; the neighbours stay
	blkdiscard -f -z -o 2M -l 3M "/dev/$1" 2>/dev/null
	is_zero "$1" 2 3
	dd if="/dev/$1" iflag=direct bs=1M skip=1 count=1 status=none | cmp - <(head -c 1048576 /tmp/large)
	dd if="/dev/$1" iflag=direct bs=1M skip=5 count=4 status=none | cmp - <(tail -c 4194304 /tmp/large)
}

blk_discard() { # DISK: what a discarded range reads as is open; its neighbours stay
	[ "$(cat "/sys/block/$1/queue/discard_max_bytes")" -gt 0 ] || { echo "no discard offered"; return 1; }
	blkdiscard -f -o 6M -l 1M "/dev/$1" 2>/dev/null
	dd if="/dev/$1" iflag=direct bs=1M skip=5 count=1 status=none | cmp - <(tail -c +4194305 /tmp/large | head -c 1048576)
	dd if="/dev/$1" iflag=direct bs=1M skip=7 count=2 status=none | cmp - <(tail -c 2097152 /tmp/large)
	blkdiscard -f "/dev/$1" 2>/dev/null
}

# Random trims, each block then written, read back and verified at the end; from every CPU and so through every queue.
# Beside that, trims of every second 64 KiB of what a sequential writer has left: the rest must stay as it was.
blk_fio_trim() { # DISK
	local common="--filename=/dev/$1 --ioengine=libaio --direct=1 --iodepth=16 --output=/tmp/fio --eta=never --verify_fatal=1"
	fio $common --name=left --offset=32M --size=16M --bs=64k --rw=write:64k --verify=crc32c --do_verify=0
	fio $common --numjobs="$(nproc)" --cpus_allowed="0-$(($(nproc) - 1))" --cpus_allowed_policy=split \
		--name=trimwrite --size=4M --offset_increment=4M --bs=4k --rw=randtrimwrite --verify=crc32c \
		--name=trim --new_group --numjobs=1 --offset=$((32 << 20 | 64 << 10)) --offset_increment=0 --size=15M --bs=64k --rw=trim:64k ||
		{ cat /tmp/fio; return 1; }
	grep -E '(trim|write|read): IOPS' /tmp/fio
	fio $common --name=left --offset=32M --size=16M --bs=64k --rw=write:64k --verify=crc32c --verify_only
}

# ---- with a file system -------------------------------------------------------------------------------------------

blk_mkfs() { # DISK: and trims the whole disk
	mkfs.ext4 -q -F -E discard "/dev/$1"
}

blk_mount() { mount -t ext4 -o discard "/dev/$1" /mnt; } # DISK

blk_fsck() { e2fsck -fn "/dev/$1" >/tmp/fsck 2>&1 || { cat /tmp/fsck; return 1; }; } # DISK

blk_mounted() { grep -q ' /mnt ext4 ' /proc/mounts || { echo "/mnt is not mounted"; return 1; }; }

blk_fio_files() { # files of their own per CPU, removed after: ext4 discards their blocks
	blk_mounted
	fio --name=files --directory=/mnt --ioengine=libaio --direct=1 --iodepth=16 --output=/tmp/fio --eta=never \
		--numjobs="$(nproc)" --cpus_allowed="0-$(($(nproc) - 1))" --cpus_allowed_policy=split \
		--size=4M --rw=randwrite --bs=4k --unlink=1 \
		--verify=crc32c --verify_fatal=1 || { cat /tmp/fio; return 1; }
	sync
	fstrim /mnt
}

blk_write_files() {
	local i
	blk_mounted
	for i in 1 2 3 4; do
		dd if=/dev/urandom of="/mnt/file$i" bs=64k count=$((i * 16)) status=none
	done
	(cd /mnt && sha256sum file? >sums)
	sync
}

blk_verify() {
	blk_mounted
	drop_caches
	(cd /mnt && sha256sum -c sums >/tmp/sums 2>&1) || { cat /tmp/sums; return 1; }
}

blk_all() { # DISK QUEUES SERIAL [RING]
	[ -z "${4:-}" ] || check "$1: $4 rings" blk_ring "$1" "$4"
	check "$1: $2 queues" blk_queues "$1" "$2"
	check "$1: serial $3" blk_serial "$1" "$3"
	check "$1: direct I/O of 1 MiB" blk_large_io "$1"
	check "$1: write zeroes" blk_write_zeroes "$1"
	check "$1: discard" blk_discard "$1"
	check "$1: fio, random writes and trims, verified" blk_fio_trim "$1"
	check "$1: every queue was used" blk_queues_used "$1" "$2"
	check "$1: mkfs.ext4" blk_mkfs "$1"
	check "$1: mount -o discard" blk_mount "$1"
	check "$1: fio on files, verified; fstrim" blk_fio_files
	check "$1: checksums after the page cache was dropped" eval 'blk_write_files; blk_verify'
	check "$1: umount" umount /mnt
	check "$1: fsck" blk_fsck "$1"
	check "$1: remount" blk_mount "$1"
	check "$1: checksums after a remount" blk_verify
	check "$1: umount again" umount /mnt
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
	wait_for_disk "$1"
	blk_all "$@"
	finish
fi
