# NVMe controllers go from the kernel to our programs and back.
#
# RIFFLE-A and RIFFLE-D (serials) have slots of their own and can be unplugged; RIFFLE-B and RIFFLE-C are functions of one device and
# so share an IOMMU group. The first namespace of A has blocks of 512 bytes, the second of 4096.
. /job/lib.sh
PATH=$PATH:/job

# ---- who drives a device ------------------------------------------------------------------------------------------

driver_of() { # BDF
	[ ! -e "/sys/bus/pci/devices/$1/driver" ] || basename "$(readlink "/sys/bus/pci/devices/$1/driver")"
}

has_driver() { # DRIVER BDF
	[ "$(driver_of "$2")" = "$1" ] || { echo "$2 has driver '$(driver_of "$2")', expected '$1'"; return 1; }
}

bind() { # BDF..
	riffle bind "$@"
	has_driver vfio-pci "${!#}"
}

unbind() { # BDF..
	riffle unbind "$@"
	has_driver nvme "${!#}"
}

# ---- disks of the kernel ------------------------------------------------------------------------------------------

wait_for_namespaces() { # SERIAL NUMBER
	local n=0 found=0
	until [ "$found" = "$2" ]; do
		[ $((n += 1)) -le 300 ] || { echo "$1 has $found namespaces after 30 s"; return 1; }
		sleep 0.1
		found=$(disks_of "$1" | wc -w)
	done
}

disks_of() { # SERIAL: in the order of their NSIDs; nvme0c0n1 is a path to one, not a disk
	local d
	for d in $(ls /sys/block | grep -x 'nvme[0-9]*n[0-9]*'); do
		[ "$(tr -d ' ' <"/sys/block/$d/device/serial")" != "$1" ] || echo "$(cat "/sys/block/$d/nsid") $d"
	done | sort -n | cut -d' ' -f2
}

block_size() { # DISK
	cat "/sys/block/$1/queue/logical_block_size"
}

namespaces_are_512_and_4096() {
	set -- $(disks_of RIFFLE-A)
	[ "$(block_size "$1") $(block_size "$2")" = "512 4096" ] || { echo "block sizes: $(block_size "$1") $(block_size "$2")"; return 1; }
}

sum_of() { dd if="/dev/$1" iflag=direct bs=64k count=64 status=none | sha256sum | cut -d' ' -f1; } # DISK

write_disks() { # SERIAL: 4 MiB on each disk; their checksums into /tmp/sums-SERIAL
	local d
	for d in $(disks_of "$1"); do
		dd if=/dev/urandom of="/dev/$d" oflag=direct bs=64k count=64 status=none
		sum_of "$d"
	done >"/tmp/sums-$1"
}

same_disks() { # SERIAL
	local d
	for d in $(disks_of "$1"); do
		sum_of "$d"
	done | cmp - "/tmp/sums-$1"
}

# ---- our programs -------------------------------------------------------------------------------------------------

listed() { # WHAT: the host looks at what `riffle list` says
	local answer
	answer=$(ask listed "$1" "$(riffle list --json | base64 -w 0)")
	[ "$answer" = "good" ] || { echo "$answer"; riffle list --json; return 1; }
}

probe() { # ARG..
	vfio_probe "$@" >/tmp/probe || { grep -v '^ok' /tmp/probe; return 1; }
	grep '^#' /tmp/probe
}

refused_naming() { # BDF WORD..: opening it fails, and the sentence has these words
	local said bdf=$1 word
	shift
	said=$(vfio_probe refused "$bdf") || { echo "opened"; return 1; }
	echo "$said"
	for word; do
		case $said in
		*"$word"*) ;;
		*) echo "it does not say '$word'"; return 1 ;;
		esac
	done
}

start_holding() { # BDF
	local n=0
	: >/tmp/hold
	vfio_probe hold "$1" >/tmp/hold &
	holder=$!
	until grep -q open /tmp/hold; do
		[ $((n += 1)) -le 100 ] || { echo "it does not open: $(cat /tmp/hold)"; return 1; }
		sleep 0.1
	done
}

unbind_while_held() { # BDF: the kernel waits until the program has closed it
	start_holding "$1"
	echo "$1" >"/sys/bus/pci/devices/$1/driver/unbind"
	wait "$holder"
	has_driver "" "$1"
}

busy_while_held() { # BDF
	local rc=0
	start_holding "$1"
	refused_naming "$1" "process $holder" vfio_probe || rc=1
	kill "$holder"
	wait "$holder" || true
	return $rc
}

wait_until_gone() { # BDF
	local n=0
	until [ ! -e "/sys/bus/pci/devices/$1" ]; do
		[ $((n += 1)) -le 300 ] || { echo "$1 is still there after 30 s"; return 1; }
		sleep 0.1
	done
}

unplug_while_held() { # BDF SERIAL
	start_holding "$1"
	[ "$(ask unplug "$2")" = "done" ]
	wait "$holder"
	wait_until_gone "$1"
}

# ---- riffle's own driver ------------------------------------------------------------------------------------------

perf() { # ARG..
	riffle perf "$@" >/tmp/perf 2>&1 || { cat /tmp/perf; return 1; }
	grep -E 'IOPS|nvme:' /tmp/perf | head -n 8
}

# Its I/O fails, and it says so; no signal ends it.
unplug_under_load() { # BDF SERIAL
	local pid rc=0
	riffle perf -w randread -t 30 "nvme:$1,nsid=1" >/tmp/perf 2>&1 &
	pid=$!
	sleep 3
	[ "$(ask unplug "$2")" = "done" ]
	wait $pid || rc=$?
	cat /tmp/perf
	[ $rc = 1 ] || { echo "the exit status is $rc"; return 1; }
	wait_until_gone "$1"
}

changed_disks() { # SERIAL: our driver has written to all of them
	local d n=0
	for d in $(disks_of "$1"); do
		n=$((n + 1))
		[ "$(sum_of "$d")" != "$(sed -n ${n}p "/tmp/sums-$1")" ] || { echo "$d is as it was"; return 1; }
	done
}

# ---- the test -----------------------------------------------------------------------------------------------------

modprobe nvme
check "the kernel has all disks" eval 'wait_for_namespaces RIFFLE-A 2; wait_for_namespaces RIFFLE-B 1; wait_for_namespaces RIFFLE-C 1
	wait_for_namespaces RIFFLE-D 1'
a=$(bdf_of RIFFLE-A) b=$(bdf_of RIFFLE-B) c=$(bdf_of RIFFLE-C) d=$(bdf_of RIFFLE-D)
check "blocks of 512 and of 4096 bytes" namespaces_are_512_and_4096
check "riffle list: the kernel has them" listed kernel
check "data is written" write_disks RIFFLE-A
check "a disk of the kernel is not opened" refused_naming "$a" "driver nvme" "riffle bind"

check "to vfio-pci" bind "$a"
check "riffle list: one is bound to vfio-pci" listed bound
check "probe: registers, memory, interrupts, reset" probe "$a"
check "a device that another process has" busy_while_held "$a"
check "unbind asks for it" unbind_while_held "$a"

check "one of two functions alone is not bound" eval '! riffle bind "$b"'
check "but with --force" bind --force "$b"
check "a group with a stranger is not opened" refused_naming "$b" "$c (nvme)" "IOMMU group"
check "both to vfio-pci" bind "$c"
check "to vfio-pci again" bind "$a"
check "three devices, two groups, one address space" probe together "$b" "$a" "$c"

check "back to the kernel" unbind "$a"
check "with all namespaces" wait_for_namespaces RIFFLE-A 2
check "the data is there" same_disks RIFFLE-A

check "to vfio-pci once more" bind "$a"
check "riffle perf: blocks of 512 and 4096 bytes, verified" perf -w verify -t 2 -q 16 "nvme:$a,nsid=1" "nvme:$a,nsid=2"
check "to the kernel again" unbind "$a"
check "with all namespaces again" wait_for_namespaces RIFFLE-A 2
check "the kernel reads what was written" changed_disks RIFFLE-A

check "to vfio-pci for the last time" bind "$a"
check "unplugging under load" unplug_under_load "$a" RIFFLE-A
check "a device that has gone" refused_naming "$a" "no PCI device"
check "the other to vfio-pci" bind "$d"
check "unplugging asks for a device" unplug_while_held "$d" RIFFLE-D
finish
