"""riffle perf: its numbers, the faults that verify must find, and what it refuses."""

import hashlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import time

from daemon import RIFFLE, Daemon, two_cpus
from tap import SLOWER, Skip

MIB = 1 << 20


def perf(*words, timeout=60):
    """The process when it has ended."""
    return subprocess.run([RIFFLE, "perf", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, check=False)


def results(*words):
    done = perf("--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["results"]


def one_sentence(done, status, *wanted):
    """Refused with this exit status and a sentence that has these words, and nothing on stdout."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("`riffle perf --help`")]
    assert done.returncode == status, f"status {done.returncode}: {done.stderr}"
    assert len(lines) == 1 and lines[0].startswith("riffle perf: ") and lines[0].endswith("."), done.stderr
    for words in wanted:
        assert words in lines[0], f"{words!r} is not in: {lines[0]}"
    assert done.stdout == "", done.stdout


class Folder:
    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="riffle-perf-")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path)

    def file(self, name="disk", size=32 * MIB, content=b""):
        path = os.path.join(self.path, name)
        with open(path, "wb") as file:
            file.write(content)
            file.truncate(size)
        return path


# -- numbers ----------------------------------------------------------------------------------------------


def test_a_row_for_each_depth():
    done = perf("-t", "1", "-q", "1,16", "malloc:size=16M")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("malloc:size=16M")]
    assert [row[3] for row in rows] == ["1", "16"], done.stdout
    assert all(float(row[4]) > 1000 for row in rows), done.stdout
    assert "resolution of latencies" in done.stdout


def test_latency_of_a_disk_that_is_known():
    """Behind a delay of 2 ms four requests in flight make 2000 IOPS, and each takes 2 ms."""
    r, = results("-t", "1", "-q", "4", "malloc:size=16M+delay:avg_read_latency=2000,p99_read_latency=2000")
    l = r["latency_us"]
    assert 1990 <= l["min"] <= l["mean"] <= l["max"] and l["min"] < 4000, l
    assert 200 < r["iops"] < 2010, r  # a busy machine makes it slower, never faster
    assert 0.9 < r["ios"] / r["seconds"] / r["iops"] < 1.1, r
    assert l["min"] <= l["p50"] * 1.01 and l["p50"] <= l["p90"] <= l["p99"] <= l["p99.9"] <= l["p99.99"], l
    assert 3.2 < r["mean_in_flight"] < 4.2, r


def test_targets_and_cores():
    cpus = two_cpus()
    rows = results("-t", "1", "-q", "8", "-c", f"[{','.join(map(str, cpus))}]", "-w", "randrw", "null:",
                   "malloc:size=16M", "--warmup", "1", "-s", "1M", "--histogram", "--percentiles", "1,75")
    assert [r["target"] for r in rows] == ["null:", "malloc:size=16M"]
    for r in rows:
        assert r["workers"] == len(cpus) and r["span"] == MIB and r["iops"] > 0
        assert 0.9 < r["seconds"] < 1.5, "the warm-up is not counted"
        assert sum(count for _, count in r["histogram_us"]) == r["ios"], "every request is in the histogram"
        assert r["latency_us"]["p1"] <= r["latency_us"]["p75"]
        assert "flush" in r


def test_a_fraction_of_a_second():
    r, = results("-t", "0.2", "--warmup", "0.05", "malloc:size=16M")
    assert 0.15 < r["seconds"] < 0.9, r
    one_sentence(perf("-t", "0.001", "null:"), 2, "-t must be from 0.01 to")


def test_rate():
    r, = results("-t", "1", "--rate", "2000", "malloc:size=16M")
    assert 1000 < r["iops"] <= 2100, r["iops"]


def test_sequential_and_mixed_jobs():
    for job in ("read", "rw", "randwrite"):
        with Folder() as folder:
            r, = results("-t", "1", "-w", job, "-o", "64K", "-s", "1M", f"file:{folder.file(size=2 * MIB)}")
            assert r["iops"] > 0 and r["io_size"] == 65536 and r["span"] == MIB
            with open(os.path.join(folder.path, "disk"), "rb") as file:
                used, rest = file.read(MIB), file.read()
            assert rest == bytes(MIB), "it wrote behind the span"
            assert (used == bytes(MIB)) == (job == "read")


def test_cpu_time_of_a_daemon():
    with Daemon() as daemon:
        r, = results("-t", "1", "--pid", str(daemon.process.pid), "malloc:size=16M")
        assert r["cpu_us_per_io"] > 0 and r["daemon_cpu_us_per_io"] >= 0, r


def test_kicks_and_interrupts_of_a_vhost_disk():
    with Daemon() as daemon:
        daemon.call("bdev_null_create", {"name": "n0", "num_blocks": 65536, "block_size": 512})
        daemon.call("vhost_create_blk_controller", {"ctrlr": "v0", "dev_name": "n0"})
        path = daemon.vhost_path("v0")
        r, = results("-t", "1", "-q", "32", f"vhost:{path}")
        assert 0 <= r["kicks_per_io"] < 0.3, r  # the device polls under load
        slow, = results("-t", "1", "-q", "1", "--rate", "200", f"vhost:{path}")
        assert 0.5 < slow["kicks_per_io"] < 1.5, slow  # and sleeps between lone requests
        null, = results("-t", "0.1", "null:")
        assert "kicks_per_io" not in null
        done = perf("-t", "0.1", "null:", f"vhost:{path}")
        assert re.search(r"kicks/IO +irqs/IO$", done.stdout, re.M) and re.search(r"^null:.* - +-$", done.stdout, re.M), done.stdout


def test_progress_on_a_terminal():
    ours, theirs = pty.openpty()
    done = subprocess.run([RIFFLE, "perf", "-t", "2", "null:"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=theirs, timeout=60, check=False)
    os.close(theirs)
    text = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 0 and re.search(r"1 / 2 s, depth 32 +\d+ IOPS", text), text


def test_interrupt_prints_what_there_is():
    with subprocess.Popen([RIFFLE, "perf", "-t", "60", "-q", "4,8", "--json", "malloc:size=16M"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    report = json.loads(out)
    assert process.returncode == 0 and report["interrupted"] is True, err
    r, = report["results"]
    assert r["depth"] == 4 and r["ios"] > 0 and 0.2 < r["seconds"] < 10


def test_instructions_per_io():
    """At most 250 instructions per request on null: the difference of two runs."""
    if SLOWER > 1 or not shutil.which("valgrind"):
        raise Skip("needs valgrind and a build without sanitizers")

    def count(seconds):
        done = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", RIFFLE, "perf", "--json",
                               "-q", "128", "-t", seconds, "null:"], capture_output=True, text=True, timeout=60,
                              check=True)
        return int(re.search(r"Collected : (\d+)", done.stderr)[1]), json.loads(done.stdout)["results"][0]["ios"]

    (few, few_ios), (many, many_ios) = count("1"), count("2")
    cost = (many - few) / (many_ios - few_ios)
    assert cost <= 250, f"{cost:.0f} instructions per request"


# -- verify -----------------------------------------------------------------------------------------------


def test_verify_finds_nothing_on_good_disks():
    with Folder() as folder:
        done = perf("-t", "2", "-w", "verify", "-s", "16M", "-q", "2,16", "-c", f"[{two_cpus()[0]}]", "malloc:size=32M",
                    f"file:{folder.file()}")
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    assert "flush semantics of file:" in done.stdout and "fdatasync" in done.stdout
    assert "sends a FLUSH now and then" in done.stdout


def faulty(kind, one_in, pattern, *words, base="malloc:size=16M"):
    """What verify says of this fault. Later writes may have left too little of it to tell a torn write from a
    lost one; of some runs one is clear."""
    for _ in range(8):
        done = perf("-t", "4", "-w", "verify", *words, f"{base}+faulty:kind={kind},one_in={one_in}")
        assert done.returncode == 1, f"{kind} was not found: {done.stdout}{done.stderr}"
        assert "verification failed" in done.stderr, done.stderr
        if match := re.search(pattern, done.stdout):
            return match
    raise AssertionError(f"{kind} is not named: {done.stdout}")


WHAT = r": \d+ blocks? of 512 at offset (\d+): expected generation (\d+), found "
FIXED = ("-o", "4K", "-s", "64K")


def test_verify_names_a_lost_write():
    for words in ((), FIXED):
        faulty("drop", 50, "lost" + WHAT + "(zeroes|generation)", *words)


def test_verify_names_a_torn_write():
    for words in ((), FIXED):
        faulty("tear", 50, "torn" + WHAT + "(zeroes|generation)", *words)


def test_verify_names_a_misplaced_write():
    found = faulty("misplace", 50, r"misplaced: .* at offset (\d+): .* of offset (\d+)")
    assert found[1] != found[2], found[0]


def test_verify_names_a_stale_block():
    """A write that happens again later, over newer data."""
    found = faulty("duplicate", 100, "stale" + WHAT + r"generation (\d+)", *FIXED)
    assert int(found[3]) < int(found[2]), found[0]


def test_verify_finds_one_write_in_100000():
    for kind in ("drop", "tear", "misplace", "duplicate"):
        done = perf("-t", "40", "-w", "verify", "-o", "4K", "-s", "16M",
                    f"malloc:size=16M+faulty:kind={kind},one_in=100000", timeout=90)
        assert done.returncode == 1 and "does not give back what was written" in done.stdout, (kind, done.stdout)


def test_verify_on_a_faulty_file():
    with Folder() as folder:
        faulty("drop", 100, "lost" + WHAT, base=f"file:{folder.file(size=4 * MIB)}")


def test_verify_in_json():
    done = perf("-t", "4", "-w", "verify", "--json", "malloc:size=4M+faulty:kind=drop,one_in=100")
    faults = json.loads(done.stdout)["results"][0]["faults"]
    assert done.returncode == 1 and sum(faults["blocks"].values()) > 0, faults
    assert faults["blocks"]["misplaced"] == 0 and faults["list"][0]["offset"] < 4 * MIB, faults


# -- refused ----------------------------------------------------------------------------------------------


def test_targets_that_do_not_suit():
    with Folder() as folder:
        path = folder.file(content=os.urandom(MIB))
        with open(path, "rb") as file:
            before = hashlib.sha256(file.read()).digest()
        small = folder.file("small", size=100)
        one_sentence(perf("-w", "write", f"file:{folder.path}/none"), 1, "does not exist")
        one_sentence(perf("-w", "write", f"file:{small}"), 1, "less than one block")
        one_sentence(perf("-w", "write", "-o", "64M", f"file:{path}"), 2, "-o must be")
        one_sentence(perf("-w", "write", "-o", "1M", "malloc:size=512K"), 1, "less than one request")
        one_sentence(perf("-w", "write", "-s", "1G", f"file:{path}"), 1, "less than the span")
        one_sentence(perf("-w", "write", "-o", "4K", "-s", "2K", f"file:{path}"), 1, "less than one request")
        for job in ("write", "rw", "randwrite", "randrw", "verify"):
            one_sentence(perf("-w", job, f"file:{path},readonly=true"), 1, "read-only", job)
        one_sentence(perf("-w", "write", "-o", "1536", f"file:{path},block_size=1024"), 1, "not a multiple")
        one_sentence(perf("-w", "write", f"file:{path}", f"file:{folder.path}/none"), 1, "does not exist")
        one_sentence(perf("-w", "write", "-c", "[1023]", f"file:{path}"), 1, "CPU 1023")
        one_sentence(perf("-w", "write", "--pid", "4194304", f"file:{path}"), 1, "no process 4194304")
        with open(path, "rb") as file:
            assert hashlib.sha256(file.read()).digest() == before, "it was written to"


def test_a_busy_file():
    with Daemon() as daemon:
        path = daemon.path("disk")
        with open(path, "wb") as file:
            file.truncate(MIB)
        daemon.rpc("bdev_aio_create", name="a", filename=path, block_size=512)
        one_sentence(perf("-w", "write", "-t", "1", f"file:{path}"), 1, "is in use")
        with open(path, "rb") as file:
            assert file.read() == bytes(MIB), "it was written to"


def test_output_on_a_full_disk():
    """What could not be printed is not a success; /dev/full is a full disk."""
    for words in (["--version"], ["perf", "--help"], ["perf", "-t", "1", "--json", "null:"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([RIFFLE, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
        assert done.returncode == 1 and "No space left on device" in done.stderr, f"{words}: {done}"


def test_wrong_command_lines():
    one_sentence(perf(), 2, "Name a target")
    one_sentence(perf("-q", "1", "null:", "-q", "8", "malloc:size=1M"), 2, "null:", "malloc:size=1M", "depth 1", "depth 8",
                 "cannot be compared")
    one_sentence(perf("-q", "0", "null:"), 2, "-q must be")
    one_sentence(perf("-q", "1,,8", "null:"), 2, "-q must be")
    one_sentence(perf("-w", "scribble", "null:"), 2, "scribble")
    one_sentence(perf("--percentiles", "50,101", "null:"), 2, "--percentiles")
    one_sentence(perf("-w", "verify", "-M", "100", "null:"), 2, "must write")
    one_sentence(perf("-w", "verify", "null:", "null:"), 2, "given twice")
    one_sentence(perf("-c", "none", "null:"), 2, "not a set of CPUs")
    one_sentence(perf("disk:"), 1, "names no target")
    one_sentence(perf("faulty:kind=tear"), 1, "needs a disk below")
    one_sentence(perf("malloc:size=1M+faulty:kind=eat"), 1, "drop, tear, misplace or duplicate")


def test_a_plus_in_a_path():
    with Folder() as folder:
        r, = results("-t", "1", f"file:{folder.file('c++:1+x:y')}")
        assert r["iops"] > 0
