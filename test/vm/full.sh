# A disk whose file cannot grow: the file system below it is full. The host can make room.
. /job/lib.sh

write_at() { # MIB COUNT
	dd if=/tmp/data of=/dev/vda oflag=direct bs=1M seek="$1" count="$2" status=none
}

same_at() { # MIB COUNT
	dd if=/dev/vda iflag=direct bs=1M skip="$1" count="$2" status=none | cmp - <(head -c $(($2 << 20)) /tmp/data)
}

write_fails() {
	! write_at 8 64 2>/tmp/error || { echo "64 MiB could be written"; return 1; }
	cat /tmp/error
	grep -q 'Input/output error\|No space left' /tmp/error
	dmesg | grep -q 'error, dev vda'
}

still_fails_then_works() {
	! write_at 100 16 2>/dev/null || { echo "16 MiB more could be written"; return 1; }
	ask free
	write_at 100 16
	same_at 100 16
}

wait_for_disk vda
dd if=/dev/urandom of=/tmp/data bs=1M count=64 status=none
check "writes work while there is room" write_at 0 4
check "a write without room is an I/O error" write_fails
check "what was written is still there" same_at 0 4
check "after room was made writes work" still_fails_then_works
check "what was written first is still there" same_at 0 4
finish
