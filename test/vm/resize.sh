# A disk that gets another size while it is in use.
. /job/lib.sh

has_size() { # MIB
	local n=0
	until [ "$(cat /sys/block/vda/size)" = $(($1 * 2048)) ]; do
		[ $((n += 1)) -le 100 ] || { echo "vda has $(cat /sys/block/vda/size) sectors"; return 1; }
		sleep 0.1
	done
	dd if=/dev/vda iflag=direct bs=1M of=/dev/null status=none
}

changes_to() { # MIB
	dd if=/dev/vda iflag=direct bs=64k of=/dev/null status=none &
	[ "$(ask resize "$1")" = "done" ]
	has_size "$1"
	wait
}

wait_for_disk vda
check "64 MiB" has_size 64
check "it grows" changes_to 96
check "it shrinks" changes_to 32
finish
