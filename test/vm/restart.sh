# The daemon is killed and started again while fio writes: nothing may be lost, no error may be seen.
#
#   restart.sh RING [TIMES]
. /job/blk.sh
times=${2:-1}

fio_across_restart() { # DISK
	local pid i
	fio --name=restart --filename="/dev/$1" --ioengine=libaio --direct=1 --iodepth=16 --size=96M --bs=4k \
		--rw=randwrite --verify=crc32c --verify_fatal=1 --output=/tmp/fio --eta=never &
	pid=$!
	for ((i = 0; i < times; i++)); do
		sleep 1.5
		kill -0 $pid 2>/dev/null || { echo "fio has ended too soon"; return 1; }
		[ "$(ask restart)" = "done" ]
	done
	wait $pid || { cat /tmp/fio; return 1; }
	grep -E 'write: IOPS' /tmp/fio
}

wait_for_disk vda
check "$1 rings" blk_ring vda "$1"
check "fio across a restart of the daemon, verified" fio_across_restart vda
check "no error in the kernel's log" eval '! dmesg | grep "error, dev"'
finish
