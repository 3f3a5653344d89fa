# lib.sh - for the scripts that run in the guest (bash); `vm` puts it beside them.
#
#   check NAME COMMAND..   run COMMAND, report NAME as passed or failed, go on; `finish` then exits with 1
#   ask QUESTION           have the host do or tell something (test driver only); prints its answer
#
# The functions given to `check` run with errexit on, in a subshell: their variables stay there.
set -euo pipefail

failed=0

report() { # ok|fail NAME
	echo "$1 - $2 ($(cut -d' ' -f1 /proc/uptime) s)"
	echo "$1 $2" >&9
}

check() { # NAME COMMAND..
	local name=$1 rc
	shift
	set +e				# not `if (...)`: that would switch errexit off inside
	(set -e; "$@")
	rc=$?
	set -e
	if [ $rc = 0 ]; then
		report ok "$name"
	else
		report fail "$name"
		failed=1
	fi
}

finish() {
	[ $failed = 0 ] || dmesg | grep -v "^\[    [0-3]\." | tail -n 10
	exit $failed
}

ask() { # QUESTION
	local answer
	echo "ask $*" >&9
	read -r -t 60 answer <&9 || { echo "the host does not answer: $*" >&2; return 1; }
	echo "$answer"
}

drop_caches() { echo 3 >/proc/sys/vm/drop_caches; }

wait_for_disk() { # NAME
	local n=0
	until [ -e "/dev/$1" ]; do
		[ $((n += 1)) -le 100 ] || { echo "no /dev/$1 after 10 s"; return 1; }
		sleep 0.1
	done
}

# The PCI address of an NVMe controller that the kernel drives.
bdf_of() { # SERIAL
	local c
	for c in /sys/class/nvme/nvme*; do
		[ "$(tr -d ' ' <"$c/serial")" = "$1" ] || continue
		basename "$(readlink -f "$c/device")"
		return
	done
	echo "no controller $1" >&2
	return 1
}
