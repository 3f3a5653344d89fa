# Does a flush reach the host's file, and only when it has to? The host tells how often a disk's file was synced.
#
#   flush.sh                vda: QEMU's default (config-wce=on); vdb: config-wce=off
. /job/lib.sh

cache_is() { # DISK MODE
	local mode
	mode=$(cat "/sys/block/$1/queue/write_cache")
	[ "$mode" = "$2" ] || { echo "the guest sees '$mode', expected '$2'"; return 1; }
}

write_blocks() { # DISK COUNT [DD-ARG]: one dd each
	local i
	for ((i = 0; i < $2; i++)); do
		dd if=/dev/urandom of="/dev/$1" oflag=direct bs=4k count=1 seek=$i status=none ${3:-}
	done
}

# How many syncs COMMAND brings: at least MIN, at most MAX.
syncs() { # DISK MIN MAX COMMAND..
	local disk=$1 min=$2 max=$3 before n
	shift 3
	before=$(ask "syncs $disk")
	"$@"
	n=$(($(ask "syncs $disk") - before))
	echo "$n syncs"
	[ $n -ge "$min" ] && [ $n -le "$max" ]
}

ext4_fsync() { # DISK
	mkfs.ext4 -q -F "/dev/$1"
	mount -t ext4 "/dev/$1" /mnt
	syncs "$1" 4 1000 fsync_file 4
	umount /mnt
}

fsync_file() { # COUNT
	local i
	for ((i = 0; i < $1; i++)); do
		dd if=/dev/urandom of=/mnt/file bs=8k count=1 seek=$i conv=fsync,notrunc status=none
	done
}

wait_for_disk vda
wait_for_disk vdb
for d in vda vdb; do
	check "$d: the guest sees a write-back cache" cache_is $d "write back"
	check "$d: writes alone bring no sync" syncs $d 0 0 write_blocks $d 8
	check "$d: every fsync arrives" syncs $d 8 1000 write_blocks $d 8 conv=fsync
	check "$d: fsync of a file on ext4 arrives" ext4_fsync $d
done

echo "write through" >/sys/block/vda/cache_type
check "vda: set to write-through by the guest" cache_is vda "write through"
check "vda: every write is synced in write-through mode" syncs vda 8 1000 write_blocks vda 8
echo "write back" >/sys/block/vda/cache_type
check "vda: set back to write-back" cache_is vda "write back"
check "vda: writes alone bring no sync again" syncs vda 0 0 write_blocks vda 8
finish
