"""riffle perf compare: its table, its JSON, its report, what it refuses, and that it leaves nothing behind."""

import atexit
import functools
import glob
import html.parser
import json
import os
import pty
import re
import select
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
import xml.etree.ElementTree

from daemon import RIFFLE, Daemon
from tap import SLOWER, Skip, needs_root
from test_perf import MIB, Folder

PATHS = ["kernel io_uring", "kernel io_uring spin", "kernel libaio", "kernel loop", "riffle file", "riffle vhost"]
SHORT = ("-t", "0.1", "--warmup", "0.02", "-q", "4")
NOBODY = 65534


@functools.cache
def temporary():
    """Where the sockets of our own runs are, and no others."""
    path = tempfile.mkdtemp(prefix="riffle-compare-test-")
    os.chmod(path, 0o777)
    atexit.register(shutil.rmtree, path)
    return path


def environment():
    return dict(os.environ, TMPDIR=temporary())


def words_of(*words):
    return [RIFFLE, "perf", "compare", *words]


def compare(*words, timeout=60, **more):
    return subprocess.run(words_of(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout * SLOWER,
                          check=False, env=environment(), **more)


def report(*words, **more):
    """Once more when the machine stood still for a whole sample, as busy ones do."""
    for _ in range(3):
        done = compare("--json", *SHORT, *words, **more)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        if all(r["iops"]["min"] > 0 for c in found["comparisons"] for r in c["rows"]):
            break
    return found


def one_sentence(done, status, *wanted):
    lines = [line for line in done.stderr.splitlines() if not line.startswith("`riffle perf compare --help`")]
    assert done.returncode == status, f"status {done.returncode}: {done.stderr}"
    assert len(lines) == 1 and lines[0].startswith("riffle perf compare: ") and lines[0].endswith("."), done.stderr
    for words in wanted:
        assert words in lines[0], f"{words!r} is not in: {lines[0]}"
    assert done.stdout == "", done.stdout


def filled(folder, size=8 * MIB, name="disk"):
    return folder.file(name, size=size, content=os.urandom(size))


def left_out(notes, name):
    return any("left out" in note and name in note for note in notes)


def processes_of(path):
    """Those that have this file open, by their command."""
    found = []
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(link) == path:
                found.append(link)
        except OSError:
            pass
    return found


def loops_on(path):
    found = []
    for name in glob.glob("/sys/block/loop*/loop/backing_file"):
        try:
            with open(name, encoding="utf-8") as file:
                if file.read().strip() == path:
                    found.append(name)
        except OSError:
            pass
    return found


class NothingLeft:
    """No process, loop device, folder of sockets, or half-written report is left of a run on this file."""

    def __init__(self, folder, path, wanted=()):
        self.folder, self.path, self.wanted = folder, path, {os.path.basename(path), *wanted}

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            return
        end = time.monotonic() + 15
        while processes_of(self.path) or loops_on(self.path):
            assert time.monotonic() < end, f"left: {processes_of(self.path)} {loops_on(self.path)}"
            time.sleep(0.05)
        assert set(os.listdir(self.folder.path)) == self.wanted, os.listdir(self.folder.path)
        assert not os.listdir(temporary()), os.listdir(temporary())


# -- numbers ----------------------------------------------------------------------------------------------


def test_a_table_of_all_paths():
    with Folder() as folder:
        path = filled(folder)
        with NothingLeft(folder, path):
            done = compare(*SHORT, "--rounds", "2", "-q", "1,8", path)
            assert done.returncode == 0 and done.stderr == "", done.stderr
    blocks = re.split(r"\nqueue depth (\d+)\n", done.stdout)
    assert blocks[1::2] == ["1", "8"], done.stdout
    notes = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
    here = [name for name in PATHS if not left_out(notes, name)]
    assert {"kernel io_uring", "riffle file", "riffle vhost"} <= set(here), notes
    for block in blocks[2::2]:
        rows = [line for line in block.split("\n\n")[0].splitlines()[1:] if line]
        assert [re.split(r"  +", row)[0] for row in rows] == here, block
        for row in rows:
            iops, *_, p50, p90, p99, p999, cpu, in_flight = row.split()[-11:]
            assert float(iops) > 0 and 0 < float(p50) <= float(p90) <= float(p99) <= float(p999), row
            assert float(cpu) > 0 and float(in_flight) > 0, row
        assert re.search(r"^kernel io_uring +\d+ +\d+\.\.\d+ +1\.00 +1\.00\.\.1\.00 ", block, re.M), block
    semantics = blocks[0].split("flush semantics")[1]
    assert all(re.search(f"^{name} +.*(fdatasync|fsync)", semantics, re.M) for name in here), semantics
    assert re.search(r"2 x 0\.1 s \(after 0\.02 s of warm-up\) .* about \d+ s", done.stdout), done.stdout


def test_json_can_be_recomputed():
    with Folder() as folder:
        path = filled(folder)
        found = report("--rounds", "3", "-q", "2,4", "--paths", "uring,file,vhost", f"file:{path}", "malloc:size=4M")
    names = ["kernel io_uring", "riffle file", "riffle vhost", "malloc:size=4M"]
    assert [p["name"] for p in found["paths"]] == names and all(p["flush"] and p["what"] for p in found["paths"])
    assert found["span"] == 4 * MIB, "all use what the smallest has"
    assert found["job"] == "randread" and found["io_size"] == 4096 and found["rounds"] == 3 and not found["interrupted"]
    assert [c["depth"] for c in found["comparisons"]] == [2, 4]
    for comparison in found["comparisons"]:
        rows = comparison["rows"]
        assert [r["path"] for r in rows] == names
        assert {r["depth"] for r in rows} == {comparison["depth"]}, "one block, one depth"
        base = rows[0]["iops"]["samples"]
        for r in rows:
            samples = r["iops"]["samples"]
            assert len(samples) == 3 and min(samples) > 0
            ratios = [a / b for a, b in zip(samples, base)]
            assert all(abs(a / b - 1) < 1e-6 for a, b in zip(ratios, r["ratio"]["samples"])), r
            for name, values in (("iops", samples), ("ratio", ratios)):
                middle = statistics.median(values)
                spread = statistics.median(abs(v - middle) for v in values)
                assert abs(r[name]["median"] / middle - 1) < 1e-6, r
                assert abs(r[name]["mad"] - spread) <= 1e-6 * middle, r
                assert abs(r[name]["min"] / min(values) - 1) < 1e-6 and abs(r[name]["max"] / max(values) - 1) < 1e-6, r
            l = r["latency_us"]
            assert 0 < l["p50"] <= l["p90"] <= l["p99"] <= l["p99.9"], l
            assert r["cpu_ns_per_io"]["median"] > 0 and "littles_law_holds" in r
            assert r["mean_in_flight"]["median"] < comparison["depth"] * 1.5, r


def test_a_disk_that_is_known():
    """Behind a delay of 2 ms: the ratio of the rates, and Little's law, are known."""
    slow = "malloc:size=4M+delay:avg_read_latency=2000,p99_read_latency=2000"
    found = report("--rounds", "2", "-t", "0.3", slow, slow.replace("2000", "4000"))
    fast, slower = found["comparisons"][0]["rows"]
    assert 0.3 < slower["ratio"]["median"] < 0.75, slower
    assert fast["littles_law_holds"] and 3 < fast["mean_in_flight"]["median"] < 4.5, fast


def test_the_same_target_twice():
    found = report("--rounds", "1", "null:", "null:")
    assert [p["name"] for p in found["paths"]] == ["null:", "null: (2)"]


def test_writing_and_mixed_jobs_keep_to_the_span():
    with Folder() as folder:
        path = filled(folder)
        with open(path, "rb") as file:
            before = file.read()
        for job in (["-w", "randwrite"], ["-w", "rw", "-M", "70", "--rate", "2000"]):
            found = report("--rounds", "1", "-s", "1M", "-o", "8K", *job, path)
            rates = [r["iops"]["median"] for r in found["comparisons"][0]["rows"]]
            assert min(rates) > 0 and ("--rate" not in job or max(rates) < 2600), rates
        with open(path, "rb") as file:
            after = file.read()
    assert before[MIB:] == after[MIB:], "it wrote behind the span"
    assert before[:MIB] != after[:MIB], "nothing was written"


@needs_root
def test_a_block_device():
    """Opened exclusively by each writer: one sample must have let go of it when the next begins."""
    if not shutil.which("losetup") or not os.path.exists("/dev/loop-control"):
        raise Skip("needs losetup and loop devices")
    with Folder() as folder:
        made = subprocess.run(["losetup", "-f", "--show", filled(folder)], capture_output=True, text=True, check=False)
        if made.returncode:
            raise Skip(f"no loop device: {made.stderr.strip()}")
        device = made.stdout.strip()
        try:
            found = report("--rounds", "3", "-w", "randrw", device)
        finally:
            subprocess.run(["losetup", "-d", device], check=True)
    names = [r["path"] for r in found["comparisons"][0]["rows"]]
    assert [n for n in PATHS if not left_out(found["notes"], n)] == names, names
    assert {"kernel io_uring", "kernel io_uring spin", "riffle file", "riffle vhost"} <= set(names), found["notes"]


def test_workers():
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise Skip("needs two CPUs")
    with Folder() as folder:
        found = report("--rounds", "1", "-c", f"[{cpus[0]},{cpus[1]}]", filled(folder))
    assert found["workers"] == 2 and all(r["iops"]["median"] > 0 for r in found["comparisons"][0]["rows"])


def test_a_file_with_holes_is_noted():
    with Folder() as folder:
        notes = report("--rounds", "1", "--paths", "uring", folder.file())["notes"]
        assert any("has holes" in note for note in notes), notes
        notes = report("--rounds", "1", "--paths", "uring", filled(folder))["notes"]
        assert not any("has holes" in note for note in notes), notes


# -- the report -------------------------------------------------------------------------------------------


class Checker(html.parser.HTMLParser):
    """Every element is closed, and in order."""

    def __init__(self):
        super().__init__()
        self.open, self.names, self.text = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.names.add(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> is out of place"

    def handle_data(self, data):
        self.text.append(data)


def test_report():
    with Folder() as folder:
        path, out = filled(folder, name="a<b>&\"'"), os.path.join(folder.path, "report.html")
        with NothingLeft(folder, path, ["report.html"]):
            done = compare(*SHORT, "--rounds", "2", "-q", "1,4", "--html", out, path, "malloc:size=8M")
            assert done.returncode == 0 and done.stderr == "", done.stderr
        with open(out, encoding="utf-8") as file:
            text = file.read()
        assert os.stat(out).st_mode & 0o777 == 0o666 & ~umask()
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert not checker.open, checker.open
    assert "script" not in checker.names and not re.search(r"http|src=|href|url\(|@import", text), "it needs other files"
    words = " ".join(checker.text)
    notes = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
    for name in [n for n in PATHS if not left_out(notes, n)] + ["malloc:size=8M"]:
        assert name in words, name
    assert path in words and "<b>" not in text, "the file's name is escaped"
    for wanted in ("Queue depth 1", "Queue depth 4", "fdatasync", "4096 bytes", "kernel", "2 rounds of 0.1 s", "P99.9"):
        assert wanted in words, wanted
    pictures = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(pictures) == 4, "two charts for each depth"
    for picture in pictures:
        root = xml.etree.ElementTree.fromstring(picture)
        assert all(0 <= float(dot.get("cx")) <= 860 for dot in root.iter("circle"))
        assert all(dot.find("title").text for dot in root.iter("circle"))
    dots = [d for d in xml.etree.ElementTree.fromstring(pictures[0]).iter("circle")]
    assert len(dots) == 2 * len(list(xml.etree.ElementTree.fromstring(pictures[1]).iter("polyline"))), "a dot per sample"


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_report_that_cannot_be_written_is_refused_before():
    with Folder() as folder:
        path = filled(folder)
        begin = time.monotonic()
        for place, words in ((f"{folder.path}/none/x.html", "cannot be written"), (folder.path, "not a regular file"),
                             ("/dev/null", "not a regular file"), (path, "is the disk")):
            one_sentence(compare("-t", "30", "--html", place, path), 1, words)
        assert time.monotonic() - begin < 10 * SLOWER, "it was measured before"
        assert os.listdir(folder.path) == ["disk"] and os.stat(path).st_size == 8 * MIB


# -- the end ----------------------------------------------------------------------------------------------


def begin_long(folder, path, *words):
    """Started, and some samples done."""
    out = os.path.join(folder.path, "report.html")
    process = subprocess.Popen(words_of("-t", "0.3", "--warmup", "0", "--rounds", "100", "--html", out, *words, path),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    time.sleep(2.5 if SLOWER == 1 else 10)
    return process


def test_interrupt_prints_what_there_is():
    with Folder() as folder:
        path = filled(folder)
        with NothingLeft(folder, path, ["report.html"]):
            with begin_long(folder, path, "--json") as process:
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=20 * SLOWER)
        with open(os.path.join(folder.path, "report.html"), encoding="utf-8") as file:
            assert "interrupted before the end" in file.read()
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["interrupted"] is True and found["comparisons"][0]["rows"][0]["iops"]["median"] > 0, found


def test_interrupt_in_each_path():
    """Whatever is being measured, its loop device, daemon and locks end with it."""
    for name in ("loop", "vhost", "file"):
        with Folder() as folder:
            path = filled(folder)
            if name == "loop" and (os.geteuid() != 0 or not os.path.exists("/dev/loop-control")):
                continue
            with NothingLeft(folder, path, ["report.html"]):
                with begin_long(folder, path, "--paths", name, "-w", "randrw") as process:
                    process.send_signal(signal.SIGTERM)
                    out, err = process.communicate(timeout=20 * SLOWER)
            assert process.returncode == 0 and "interrupted" in out, out + err


def test_on_a_terminal():
    """Progress is shown, and Ctrl-C reaches the first process alone, not the sample and its daemon at once."""
    with Folder() as folder:
        path = filled(folder)
        with NothingLeft(folder, path):
            process, terminal = pty.fork()
            if process == 0:
                os.execve(RIFFLE, words_of("-t", "0.3", "--rounds", "100", "--paths", "vhost", path), environment())
            text, interrupted, end = "", False, time.monotonic() + 40
            while time.monotonic() < end:
                if select.select([terminal], [], [], 0.2)[0]:
                    try:
                        text += os.read(terminal, 65536).decode()
                    except OSError:  # the terminal's other end is closed
                        break
                if not interrupted and "round 3 of 100, riffle vhost" in text:
                    os.write(terminal, b"\x03")
                    interrupted = True
            status = os.waitpid(process, 0)[1]
            os.close(terminal)
    assert interrupted and os.waitstatus_to_exitcode(status) == 0, text
    assert "interrupted in round" in text and re.search(r"riffle vhost +\d+ +\d+\.\.", text) and "failed" not in text, text


def test_killed():
    """Nothing runs on when the first process is gone; only its temporary files stay."""
    with Folder() as folder:
        path = filled(folder)
        with begin_long(folder, path, "--paths", "vhost") as process:
            process.kill()
        end = time.monotonic() + 15 * SLOWER
        while processes_of(path):
            assert time.monotonic() < end, processes_of(path)
            time.sleep(0.1)
        for left in os.listdir(temporary()):
            shutil.rmtree(os.path.join(temporary(), left))


# -- refused ----------------------------------------------------------------------------------------------


def test_targets_that_do_not_suit():
    with Folder() as folder:
        path, small = filled(folder), folder.file("small", size=100)
        out = os.path.join(folder.path, "report.html")
        one_sentence(compare("--html", out, f"{folder.path}/none"), 1, "does not exist")
        one_sentence(compare("--html", out, small), 1, "less than one block")
        one_sentence(compare("-o", "4M", folder.file("little", size=MIB)), 1, "less than one request")
        one_sentence(compare("-s", "1G", path), 1, "less than the span")
        one_sentence(compare(path, "malloc:size=2K"), 1, "less than one request")
        one_sentence(compare(folder.path), 1, "neither a regular file nor a block device")
        one_sentence(compare("-c", "[1023]", path), 1, "CPU 1023")
        one_sentence(compare(path, f"vhost:{folder.path}/none"), 1, "none")
        assert sorted(os.listdir(folder.path)) == ["disk", "little", "small"]


def test_a_busy_file_is_not_written():
    with Daemon() as daemon:
        path = daemon.path("disk")
        with open(path, "wb") as file:
            file.truncate(MIB)
        daemon.rpc("bdev_aio_create", name="a", filename=path, block_size=512)
        for paths in ([], ["--paths", "uring"], ["--paths", "vhost"]):
            one_sentence(compare("-w", "randwrite", *SHORT, *paths, path), 1, "is in use")
        with open(path, "rb") as file:
            assert file.read() == bytes(MIB), "it was written to"


def test_depths_that_differ():
    with Folder() as folder:
        path = filled(folder)
        one_sentence(compare("-q", "1", path, "-q", "8", "null:"), 2, "cannot be compared")
        one_sentence(compare("-q", "2048", "--paths", "uring,vhost", path), 1, "riffle vhost", "at most 1024", "not 2048",
                     "different queue depths")
        found = report("--rounds", "1", "-q", "2048", "-t", "0.2", path)
        assert left_out(found["notes"], "riffle vhost"), found["notes"]
        assert "riffle vhost" not in [r["path"] for r in found["comparisons"][0]["rows"]]


def test_a_ring_that_is_too_small():
    with Daemon() as daemon:
        daemon.rpc("bdev_malloc_create", name="m", num_blocks=8192, block_size=512)
        daemon.rpc("vhost_create_blk_controller", ctrlr="c", dev_name="m")
        socket = f"vhost:{daemon.path('vhost/c')}"
        one_sentence(compare("-q", "128", f"{socket},vq_size=64"), 1, "at most 64", "not 128")
        found = report("--rounds", "2", socket, "malloc:size=4M")
        assert [p["name"] for p in found["paths"]] == [socket[:79], "malloc:size=4M"]
        assert any("behind the socket" in note for note in found["notes"])


def test_without_root():
    with Folder() as folder:
        path = filled(folder)
        os.chmod(folder.path, 0o755)
        os.chmod(path, 0o644)
        more = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        found = report("--rounds", "1", path, **more)
        assert left_out(found["notes"], "kernel loop") and any("for root" in note or "no loop devices" in note
                                                               for note in found["notes"]), found["notes"]
        one_sentence(compare("--paths", "loop", path, **more), 1, "kernel loop cannot be measured", "loop device")
        if os.geteuid() == 0:
            one_sentence(compare("-w", "randwrite", path, **more), 1, "cannot be opened for writing")


def test_wrong_command_lines():
    one_sentence(compare(), 2, "Name a file")
    one_sentence(compare("--paths", "uring,disk", "/x"), 2, "--paths", "disk")
    one_sentence(compare("--paths", "uring,uring", "/x"), 2, "twice")
    one_sentence(compare("--paths", "uring", "null:"), 2, "give one")
    one_sentence(compare("--rounds", "0", "null:"), 2, "--rounds must be")
    one_sentence(compare("-t", "0", "null:"), 2, "-t must be")
    one_sentence(compare("-t", "nan", "null:"), 2, "-t must be")
    one_sentence(compare("-w", "verify", "null:"), 2, "verify")
    one_sentence(compare("--pid", "1", "null:"), 2, "--pid")
    one_sentence(compare("/a", "file:/b"), 2, "one file")
    one_sentence(compare("file:/a,readonly=true"), 2, "without a comma")
    one_sentence(compare("disk:x"), 1, "names no target")
    done = compare("--help")
    assert done.returncode == 0 and "--html" in done.stdout and done.stderr == ""
    done = subprocess.run([RIFFLE, "perf", "--html", "x", "null:"], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2 and "riffle perf compare" in done.stderr, done.stderr
