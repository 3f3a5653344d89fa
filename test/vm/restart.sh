# The daemon is killed and started again while fio writes: nothing may be lost, no error may be seen.
. /job/lib.sh

fio_across_restart() { # DISK
	local pid
	fio --name=restart --filename="/dev/$1" --ioengine=libaio --direct=1 --iodepth=16 --size=96M --bs=4k \
		--rw=randwrite --verify=crc32c --verify_fatal=1 --output=/tmp/fio --eta=never &
	pid=$!
	sleep 1.5
	kill -0 $pid 2>/dev/null || { echo "fio has ended too soon"; return 1; }
	[ "$(ask restart)" = "done" ]
	wait $pid || { cat /tmp/fio; return 1; }
	grep -E 'write: IOPS' /tmp/fio
}

wait_for_disk vda
check "fio across a restart of the daemon, verified" fio_across_restart vda
check "no error in the kernel's log" eval '! dmesg | grep "error, dev"'
finish
