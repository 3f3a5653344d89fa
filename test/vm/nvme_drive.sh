# Riffle drives NVMe controllers: verify, reset, namespaces that come and go, unplugging, and back to the kernel.
#
# RIFFLE-A has namespaces with blocks of 512 and of 4096 bytes, transfers of at most 128 KiB and shadow doorbells;
# RIFFLE-B has one interrupt only, the admin queue's, submission queues in its own memory, and can be unplugged.
. /job/lib.sh
PATH=$PATH:/job

wait_for() { # SECONDS COMMAND..
	local n=0 most=$(($1 * 10))
	shift
	until "$@"; do
		[ $((n += 1)) -le "$most" ] || { echo "not within $((most / 10)) s: $*"; return 1; }
		sleep 0.1
	done
}

rpc() { riffle rpc "$@"; }

start_daemon() {
	riffle serve >/tmp/log 2>&1 &
	daemon=$!
	wait_for 20 [ -S /run/riffle/rpc.sock ]
}

said() { grep -q "$1" /tmp/log || { echo "the log does not say: $1"; cat /tmp/log; return 1; }; }

# ---- perf drives a namespace itself ---------------------------------------------------------------------------

verify() { # TARGET ARG..: no block is lost, torn, stale or misplaced
	riffle perf -w verify "$@" >/tmp/perf 2>&1 || { tr '\r' '\n' </tmp/perf; return 1; }
}

smart_and_identify() {
	riffle identify "$a" | grep -q 'Serial number: *RIFFLE-A'
	riffle identify --json "$a" | tr -d ' \n' | grep -q '"nsid":2,.*"block_size":4096'
	riffle smart "$b" | grep -q 'Temperature celsius: *[0-9]'
}

# ---- the daemon -----------------------------------------------------------------------------------------------

attached() {
	rpc bdev_nvme_attach_controller name=A trtype=pcie "traddr=$a" | tr -d ' \n' | grep -qx '\["An1","An2"\]'
	rpc bdev_nvme_attach_controller name=B trtype=PCIE "traddr=$b" | tr -d ' \n' | grep -qx '\["Bn1"\]'
	rpc bdev_get_bdevs name=An2 | grep -q '"block_size": 4096'
}

attached_twice_is_refused() {
	! rpc bdev_nvme_attach_controller name=C trtype=PCIe "traddr=$a" 2>/tmp/said
	grep -q "is attached already, as 'A'" /tmp/said
}

in_use_by_the_daemon() {
	! riffle identify "$a" 2>/tmp/said
	grep -q "driven by another process" /tmp/said
}

resets_under_verify() { # I/O of vhost disks waits and is sent again
	local n
	riffle perf -w verify -q 8 -t 9 vhost:/run/riffle/one >/tmp/perf 2>&1 &
	for n in 1 2 3 4 5; do
		sleep 1.2
		rpc bdev_nvme_reset_controller name=A >/dev/null
	done
	wait $! || { tr '\r' '\n' </tmp/perf; cat /tmp/log; return 1; }
	rpc bdev_nvme_get_controllers name=A | grep -q '"resets": 5'
}

namespace() { # attach|detach NSID: by the drive's own command, as an administrator would
	local op=$([ "$1" = attach ] && echo 0 || echo 1)
	printf '\x15\x00\x00\x00\x02\x00\x00\x00' >/tmp/sqe
	head -c 32 /dev/zero >>/tmp/sqe
	printf "\\x0$op\\x00\\x00\\x00" >>/tmp/sqe
	head -c 20 /dev/zero >>/tmp/sqe
	{ printf '\x01\x00\x00\x00'; head -c 4092 /dev/zero; } >/tmp/list
	rpc bdev_nvme_send_cmd name=A cmd_type=admin data_direction=h2c \
		"cmdbuf=$(base64 -w 0 /tmp/sqe)" "data=$(base64 -w 0 /tmp/list)" >/tmp/reply
}

has_bdev() { rpc bdev_get_bdevs "name=$1" >/dev/null 2>&1; }
no_bdev() { ! has_bdev "$1"; }

namespaces_come_and_go() {
	namespace detach 2
	wait_for 10 no_bdev An2
	has_bdev An1
	namespace attach 2
	wait_for 10 has_bdev An2
}

unplugged_under_load() { # its I/O fails, the other one's goes on
	riffle perf -q 8 -t 30 vhost:/run/riffle/b >/tmp/perf-b 2>&1 &
	local load=$!
	riffle perf -w verify -q 4 -t 6 vhost:/run/riffle/one >/tmp/perf 2>&1 &
	local verify=$!
	sleep 2
	[ "$(ask unplug RIFFLE-B)" = "done" ]
	wait_for 30 [ ! -e "/sys/bus/pci/devices/$b" ]
	! wait $load
	wait $verify || { tr '\r' '\n' </tmp/perf; return 1; }
	said "fails from now on"
	rpc bdev_nvme_get_controllers name=B | grep -q '"state": "deleting"'
	rpc vhost_delete_controller ctrlr=b
	rpc bdev_nvme_detach_controller name=B
}

# ---- back to the kernel ---------------------------------------------------------------------------------------

file_system_by_vhost() {
	mkdir -p /tmp/tree
	dd if=/dev/urandom bs=1M count=4 status=none >/tmp/tree/data
	truncate -s 32M /tmp/fs
	mkfs.ext4 -q -F -b 1024 -d /tmp/tree /tmp/fs
	vhost_copy /tmp/fs /run/riffle/one
}

kernel_mounts_it() {
	wait_for 30 [ -e /dev/nvme0n1 ]
	mount -t ext4 -o ro /dev/nvme0n1 /mnt
	cmp /tmp/tree/data /mnt/data
	umount /mnt
	e2fsck -fn /dev/nvme0n1 >/dev/null
}

ends_cleanly() {
	kill "$daemon"
	wait_for 20 [ ! -e "/proc/$daemon/cwd" ]
	said "stopped"
}

# ---- the test -------------------------------------------------------------------------------------------------

modprobe nvme
ulimit -l unlimited
wait_for 30 [ -e /sys/class/nvme/nvme1/serial ]
a=$(bdf_of RIFFLE-A) b=$(bdf_of RIFFLE-B)
check "bind" riffle bind "$a" "$b"
check "identify and smart" smart_and_identify
check "verify: 512-byte blocks, up to 2 MiB" verify -q 16 -t 3 "nvme:$a"
check "verify: 4096-byte blocks" verify -q 8 -t 2 "nvme:$a,nsid=2"
check "verify: queues of 2 entries" verify -q 8 -t 2 "nvme:$a,io_queue_entries=2"
check "verify: two namespaces on two cores" verify -q 4 -c 0-1 -t 2 "nvme:$a" "nvme:$a,nsid=2"
check "verify: queues in its own memory, no interrupts for I/O" verify -q 16 -t 2 "nvme:$b"

start_daemon
check "attach" attached
check "attaching twice is refused" attached_twice_is_refused
check "a device that the daemon has" in_use_by_the_daemon
rpc vhost_create_blk_controller ctrlr=one dev_name=An1 >/dev/null
rpc vhost_create_blk_controller ctrlr=b dev_name=Bn1 >/dev/null
check "verify through vhost" verify -q 16 -t 3 vhost:/run/riffle/one
check "resets in mid I/O" resets_under_verify
check "namespaces come and go" namespaces_come_and_go
check "unplugged in mid I/O" unplugged_under_load
check "a file system, written through vhost" file_system_by_vhost
check "the daemon ends cleanly" ends_cleanly
check "unbind" riffle unbind "$a"
check "the kernel mounts what riffle wrote" kernel_mounts_it
finish
