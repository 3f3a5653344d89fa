# The queues change their reactors all the time while fio writes: nothing may be lost, no error may be seen.
#
#   moves.sh QUEUES
. /job/blk.sh

fio_while_moved() { # DISK JOBS
	local pid status
	fio --name=moves --filename="/dev/$1" --ioengine=libaio --direct=1 --iodepth=16 --size=24M --offset_increment=24M \
		--numjobs="$2" --bs=4k --rw=randwrite --verify=crc32c --verify_fatal=1 --output=/tmp/fio --eta=never &
	pid=$!
	[ "$(ask begin)" = "done" ]
	wait $pid
	status=$?
	[ "$(ask end)" = "moved" ] || return 1
	[ $status = 0 ] || { cat /tmp/fio; return 1; }
	grep -E 'write: IOPS' /tmp/fio
}

wait_for_disk vda
check "$1 queues" [ "$(ls -d /sys/block/vda/mq/* | wc -l)" = "$1" ]
check "fio while queues move between reactors, verified" fio_while_moved vda "$1"
check "no error in the kernel's log" eval '! dmesg | grep "error, dev"'
finish
