"""`riffle bind`, `unbind`, `setup` and `list --config` on a machine made of files, and a kernel that is a thread."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import tap
from daemon import RIFFLE
from test_list import Machine

DRIVERS = ("nvme", "vfio-pci", "uio_pci_generic", "snd_hda_intel")
ONE, TWO, THREE = "0000:01:00.0", "0000:02:00.0", "10000:e1:00.0"


class Kernel(Machine):
    """Answers what is written to unbind, bind and drivers_probe, as the kernel does but a moment later."""

    def __init__(self):
        super().__init__()
        self.refuses = set()  # drivers that take no device
        self.keeps = set()  # drivers that let none go
        self.orders = []  # what was asked: (file, address)
        self.ending = threading.Event()
        self.write("sys/bus/pci/drivers_probe", "")
        for driver in DRIVERS:
            self.write(f"sys/bus/pci/drivers/{driver}/bind", "")
            self.write(f"sys/bus/pci/drivers/{driver}/unbind", "")
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def end(self):
        self.ending.set()
        self.thread.join()
        shutil.rmtree(self.root)

    def add(self, bdf, number=0, group=None, driver="nvme", **attributes):
        if driver == "nvme":
            self.nvme(bdf, number, **attributes)
        else:
            self.device(bdf, driver, **attributes)
        self.write(f"sys/bus/pci/devices/{bdf}/driver_override", "(null)\n")
        if group is not None:
            self.link(f"sys/bus/pci/devices/{bdf}/iommu_group", f"../../../kernel/iommu_groups/{group}")

    def device_path(self, bdf, name):
        return self.path("sys/bus/pci/devices", bdf, name)

    def driver(self, bdf):
        link = self.device_path(bdf, "driver")
        return os.path.basename(os.readlink(link)) if os.path.islink(link) else None

    def override(self, bdf):
        with open(self.device_path(bdf, "driver_override"), encoding="utf-8") as file:
            return file.read().strip()

    def remembered(self):
        folder = self.path("run/riffle/bind")
        found = {}
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if name != ".lock":
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    found[name] = file.read()
        return found

    # --- what the kernel does ---

    def run(self):
        files = ["drivers_probe"] + [f"drivers/{d}/{f}" for d in DRIVERS for f in ("bind", "unbind")]
        while not self.ending.is_set():
            for name in files:
                path = self.path("sys/bus/pci", name)
                if os.path.isfile(path) and os.path.getsize(path):
                    self.answer(name, path)
            time.sleep(0.001)

    def answer(self, name, path):
        with open(path, "r+", encoding="utf-8") as file:
            bdf = file.read().strip()
            file.truncate(0)
        self.orders.append((name, bdf))
        driver = name.split("/")[1] if "/" in name else None
        if name.endswith("unbind"):
            self.take(driver, bdf)
        else:
            self.give(driver or self.override(bdf) or "nvme", bdf)

    def take(self, driver, bdf):
        if driver in self.keeps or self.driver(bdf) != driver:
            return
        if os.path.isdir(self.device_path(bdf, "nvme")):
            os.rename(self.device_path(bdf, "nvme"), self.device_path(bdf, ".nvme"))
        os.unlink(self.device_path(bdf, "driver"))

    def give(self, driver, bdf):
        if driver in self.refuses or driver not in DRIVERS or self.driver(bdf) or self.override(bdf) not in ("", driver):
            return
        if driver == "nvme" and os.path.isdir(self.device_path(bdf, ".nvme")):
            os.rename(self.device_path(bdf, ".nvme"), self.device_path(bdf, "nvme"))
        os.symlink(f"../../../bus/pci/drivers/{driver}", self.device_path(bdf, "driver"))

    # --- what a person does ---

    def say(self, *words, status=0, **environment):
        done = subprocess.run([RIFFLE, words[0], "--root", self.root, *words[1:]], capture_output=True, text=True, timeout=30, check=False,
                              env={**clean_environment(), **environment})
        assert done.returncode == status, done
        assert status == 0 or done.stderr.startswith(f"riffle {words[0]}: "), done
        return done.stdout + done.stderr


def clean_environment():
    ours = ("PCI_ALLOWED", "PCI_BLOCKED", "DRIVER_OVERRIDE", "HUGEMEM", "NRHUGE", "HUGENODE", "HUGEPGSZ", "CLEAR_HUGE")
    return {k: v for k, v in os.environ.items() if k not in ours}


@contextlib.contextmanager
def kernel():
    made = Kernel()
    try:
        yield made
    finally:
        made.end()


def hugepages(k, nodes=(0, 1), sizes=(2048, 1048576)):
    k.write("proc/meminfo", "MemTotal: 1 kB\nHugepagesize:       2048 kB\n")
    for size in sizes:
        folders = ["sys/kernel/mm/hugepages"] + [f"sys/devices/system/node/node{n}/hugepages" for n in nodes]
        for folder in folders:
            k.write(f"{folder}/hugepages-{size}kB/nr_hugepages", "0\n")
            k.write(f"{folder}/hugepages-{size}kB/free_hugepages", "0\n")


def pages(k, folder, size=2048):
    with open(k.path(folder, f"hugepages-{size}kB/nr_hugepages"), encoding="utf-8") as file:
        return int(file.read())


# --- there and back ---


def test_bound_and_given_back():
    with kernel() as k:
        k.add(ONE, 0, group=14)
        assert "vfio-pci has it now, and nvme before" in k.say("bind", ONE)
        assert k.driver(ONE) == "vfio-pci" and k.override(ONE) == "vfio-pci" and k.remembered() == {ONE: "nvme -\n"}
        assert "has vfio-pci already" in k.say("bind", ONE)
        assert "nvme has it back" in k.say("unbind", ONE)
        assert k.driver(ONE) == "nvme" and k.override(ONE) == "" and k.remembered() == {}
        assert "has nvme already" in k.say("unbind", ONE)


def test_addresses_as_people_write_them():
    with kernel() as k:
        k.add("0000:ab:00.0", 0, group=1)
        k.add(THREE, 1, group=2)
        k.say("bind", "AB:00.0", "0000:AB:00.0", "10000:E1:00.0")
        assert k.driver("0000:ab:00.0") == k.driver(THREE) == "vfio-pci"
        assert k.orders.count(("drivers/nvme/unbind", "0000:ab:00.0")) == 1
        k.say("unbind", "ab:00.0")
        assert k.driver("0000:ab:00.0") == "nvme"


def test_what_is_no_device():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        for word in ("01:00", "nvme0", "0000:01:00.8", "../0000:01:00.0"):
            assert "not the address of a PCI device" in k.say("bind", ONE, word, status=2)
        assert "There is no PCI device 0000:01:00.1" in k.say("bind", ONE, "01:00.1", status=1)
        k.device("0000:05:00.0", "snd_hda_intel", pci_class="0x040300")
        assert "not an NVMe device" in k.say("bind", "05:00.0", status=1)
        assert k.orders == [] and k.remembered() == {}


def test_another_driver_and_none():
    with kernel() as k:
        k.add(ONE, 0)  # no IOMMU
        k.say("bind", ONE, "--driver", "uio_pci_generic")
        assert k.driver(ONE) == "uio_pci_generic"
        k.say("bind", ONE, "--driver", "none")
        assert k.driver(ONE) is None and k.remembered() == {ONE: "nvme -\n"}, k.remembered()
        assert "no driver already" in k.say("bind", ONE, "--driver", "none")
        k.say("unbind", "--all")
        assert k.driver(ONE) == "nvme" and k.override(ONE) == ""


def test_an_override_that_was_there():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        k.write(f"sys/bus/pci/devices/{ONE}/driver_override", "nvme\n")
        k.say("bind", ONE)
        assert k.remembered() == {ONE: "nvme nvme\n"}
        k.say("unbind", ONE)
        assert k.override(ONE) == "nvme" and k.driver(ONE) == "nvme"


def test_bound_by_somebody_else():
    with kernel() as k:
        k.add(ONE, driver="vfio-pci", group=1)
        k.write(f"sys/bus/pci/devices/{ONE}/driver_override", "vfio-pci\n")
        assert "nothing to do" in k.say("unbind", "--all") and k.driver(ONE) == "vfio-pci"
        k.say("unbind", ONE)
        assert k.driver(ONE) == "nvme" and k.override(ONE) == ""
        k.say("bind", ONE)  # and given back by somebody else: what is remembered is old
        k.write(f"sys/bus/pci/devices/{ONE}/driver_override", "\n")
        k.take("vfio-pci", ONE)
        k.give("nvme", ONE)
        k.say("bind", ONE)
        assert k.driver(ONE) == "vfio-pci" and k.remembered() == {ONE: "nvme -\n"}
        k.say("unbind", "--all")
        assert k.driver(ONE) == "nvme" and k.remembered() == {}


def test_dry_run_changes_nothing():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        shutil.rmtree(k.path("sys/bus/pci/drivers/vfio-pci"))
        text = k.say("bind", ONE, "--dry-run")
        assert "Would load the module vfio-pci" in text and "would be given to vfio-pci; nvme has it now" in text
        assert k.driver(ONE) == "nvme" and k.orders == [] and not os.path.exists(k.path("run"))


def test_json():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        k.add(TWO, 1, group=2)
        k.mount("259:11", "/srv", "/dev/nvme1n1")
        done = subprocess.run([RIFFLE, "bind", "--root", k.root, "--json", ONE, TWO], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 1 and "mounted on /srv" in done.stderr, done
        told = {d["bdf"]: d for d in json.loads(done.stdout)}
        assert told[ONE]["result"] == "done" and told[ONE]["driver_before"] == "nvme" and told[ONE]["driver"] == "vfio-pci"
        assert told[TWO]["result"] == "failed" and told[TWO]["driver"] == "nvme" and "/srv" in told[TWO]["text"]


# --- who uses it ---


def test_in_use():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        k.add(TWO, 1, group=2)
        k.mount("259:1", "/srv", "/dev/nvme0n1")
        text = k.say("bind", ONE, TWO, status=1)
        assert f"{ONE} is in use: nvme0n1 is mounted on /srv." in text and "--force" in text
        assert k.driver(ONE) == "nvme" and k.driver(TWO) == "vfio-pci"
        k.say("bind", ONE, "--force")
        assert k.driver(ONE) == "vfio-pci"


def open_in(k, pid, comm, *paths):
    k.write(f"proc/{pid}/comm", comm + "\n")
    for number, path in enumerate(paths):
        k.link(f"proc/{pid}/fd/{number}", path)


def test_open_in_a_process():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        k.add(TWO, 1, group=2)
        open_in(k, 77, "qemu", "/dev/null", "/dev/nvme0n1p2", "/dev/nvme0n1p2")
        open_in(k, 78, "(udev-worker)", "/dev/nvme1n1")
        open_in(k, 79, "other", "/dev/nvme1n10", "/dev/nvme1", "/srv/dev/nvme1n1")
        text = k.say("bind", ONE, TWO, status=1)
        assert "nvme0n1 is open in qemu (process 77)." in text and k.driver(TWO) == "vfio-pci"
        open_in(k, 80, "riffle", "/dev/vfio/vfio", "/dev/vfio/2")
        assert "vfio/2 is open in riffle (process 80)" in k.say("unbind", TWO, status=1) and k.driver(TWO) == "vfio-pci"
        assert "vfio/2 is open in riffle" in k.say("unbind", "--all", status=1)
        k.say("unbind", TWO, "--force")
        assert k.driver(TWO) == "nvme"


def test_all_that_are_free():
    with kernel() as k:
        for number, bdf in enumerate((ONE, TWO, THREE)):
            k.add(bdf, number, group=number)
        k.mount("259:11", "/srv", "/dev/nvme1n1")
        text = k.say("bind", "--all")
        assert f"{TWO} stays with nvme: nvme1n1 is mounted on /srv." in text
        assert [k.driver(bdf) for bdf in (ONE, TWO, THREE)] == ["vfio-pci", "nvme", "vfio-pci"]
        k.say("unbind", "--all")
        assert [k.driver(bdf) for bdf in (ONE, TWO, THREE)] == ["nvme"] * 3


# --- the IOMMU ---


def test_no_iommu():
    with kernel() as k:
        k.add(ONE, 0)
        text = k.say("bind", ONE, "--force", status=1)
        assert "intel_iommu=on" in text and "uio_pci_generic" in text and k.driver(ONE) == "nvme"
        k.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n")
        k.say("bind", ONE)
        assert k.driver(ONE) == "vfio-pci"


def test_a_group_of_several():
    with kernel() as k:
        k.add(ONE, 0, group=14)
        k.add("0000:01:00.1", group=14, driver="snd_hda_intel", pci_class="0x040300")
        k.add("0000:00:01.0", group=14, driver="pcieport", pci_class="0x060400")
        k.add("0000:01:00.2", group=14, driver=None, pci_class="0x0c0330")
        text = k.say("bind", ONE, status=1)
        assert "IOMMU group 14 with 0000:01:00.1 (snd_hda_intel)," in text and "pcieport" not in text and k.driver(ONE) == "nvme"
        assert "warning" in k.say("bind", ONE, "--force") and k.driver(ONE) == "vfio-pci"
        k.say("unbind", ONE)
        assert "warning" not in k.say("bind", "--force", ONE, "01:00.1")
        assert k.driver("0000:01:00.1") == "vfio-pci"
        k.say("unbind", "--all")
        assert k.driver("0000:01:00.1") == "snd_hda_intel"


def test_two_of_a_group_together():
    with kernel() as k:
        k.add(ONE, 0, group=14)
        k.add(TWO, 1, group=14)
        k.say("bind", ONE, status=1)
        k.mount("259:11", "/srv", "/dev/nvme1n1")  # the other one stays: so must this one
        text = k.say("bind", ONE, TWO, status=1)
        assert "mounted on /srv" in text and f"with {TWO} (nvme)" in text and k.driver(ONE) == "nvme"
        k.write("proc/self/mountinfo", "")
        k.say("bind", ONE, TWO)
        assert k.driver(ONE) == k.driver(TWO) == "vfio-pci"


# --- what fails comes back ---


def test_a_driver_that_does_not_take_it():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        k.add(TWO, 1, group=2)
        k.refuses.add("vfio-pci")
        text = k.say("bind", "--timeout", "1", ONE, status=1)
        assert f"vfio-pci did not take {ONE}." in text and "nvme has it back." in text
        assert k.driver(ONE) == "nvme" and k.override(ONE) == "" and k.remembered() == {}


def test_no_way_back():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        k.refuses |= {"vfio-pci", "nvme"}
        text = k.say("bind", "--timeout", "1", ONE, status=1)
        assert "could not be given back" in text and k.driver(ONE) is None and k.remembered() == {ONE: "nvme -\n"}
        assert "nvme did not take" in k.say("unbind", "--timeout", "1", ONE, status=1) and k.remembered()
        k.refuses.clear()
        k.say("unbind", ONE)
        assert k.driver(ONE) == "nvme" and k.remembered() == {}


def test_a_driver_that_does_not_let_go():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        k.keeps.add("nvme")
        text = k.say("bind", "--timeout", "1", ONE, status=1)
        assert "did not let" in text and "nvme has it back" in text and k.override(ONE) == "" and k.remembered() == {}


def test_an_unbind_that_never_returns():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        unbind = k.path("sys/bus/pci/drivers/nvme/unbind")
        os.unlink(unbind)
        os.mkfifo(unbind)  # nobody opens the other end
        begin = time.monotonic()
        text = k.say("bind", "--timeout", "1", ONE, status=1)
        assert "within 1 s" in text and f"`riffle unbind {ONE}`" in text and time.monotonic() - begin < 10
        assert k.remembered() == {ONE: "nvme -\n"}
        k.say("unbind", ONE)
        assert k.override(ONE) == "" and k.remembered() == {}


def test_a_driver_that_says_no():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        path = k.path("sys/bus/pci/drivers/vfio-pci/bind")
        os.unlink(path)
        os.symlink("/dev/full", path)
        assert "No space left on device" in k.say("bind", ONE, status=1) and k.driver(ONE) == "nvme"


def test_no_such_driver():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        text = k.say("bind", ONE, "--driver", "vfio-other", status=1)
        assert "modprobe vfio-other" in text and "Nothing was changed" in text and k.orders == []
        shutil.rmtree(k.path("sys/bus/pci/devices", ONE))
        k.add(ONE, driver="vfio-pci", group=1)
        k.write(f"run/riffle/bind/{ONE}", "gone -\n")
        text = k.say("unbind", ONE, status=1)
        assert "no longer has the driver gone" in text and f"remove '{k.root}/run/riffle/bind/{ONE}'" in text
        assert k.driver(ONE) == "vfio-pci"


def test_one_at_a_time():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        os.makedirs(k.path("run/riffle/bind"))
        with open(k.path("run/riffle/bind/.lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert "Another riffle" in k.say("bind", ONE, status=1) and k.orders == []


def test_what_is_remembered_is_spoilt():
    with kernel() as k:
        k.add(ONE, driver="vfio-pci", group=1)
        for text in ("", "\n", "nvme", "\0\0 \0", "../../nvme -"):
            k.write(f"run/riffle/bind/{ONE}", text)
            k.say("unbind", ONE)
            assert k.driver(ONE) == "nvme"
            k.take("nvme", ONE)
            k.write(f"sys/bus/pci/devices/{ONE}/driver_override", "vfio-pci\n")
            k.give("vfio-pci", ONE)


@tap.needs_root
def test_without_root():
    with kernel() as k, tempfile.TemporaryDirectory(prefix="riffle-bind-") as folder:
        k.add(ONE, 0, group=1)
        binary = shutil.copy(RIFFLE, folder)
        for path in (folder, k.root):
            os.chmod(path, 0o755)
        for words in (["bind", ONE], ["unbind", ONE], ["setup"], ["setup", "reset"]):
            done = subprocess.run([binary, words[0], "--root", k.root, *words[1:]], capture_output=True, text=True, timeout=10, check=False,
                                  user=65534, group=65534, extra_groups=[], env=clean_environment())
            assert done.returncode == 1 and "run as root" in done.stderr, done
        done = subprocess.run([binary, "bind", "--root", k.root, "--dry-run", ONE], capture_output=True, text=True, timeout=10, check=False,
                              user=65534, group=65534, extra_groups=[])
        assert done.returncode == 0, done


# --- setup ---


def test_setup_config_and_reset():
    with kernel() as k:
        for number, bdf in enumerate((ONE, TWO, THREE)):
            k.add(bdf, number, group=number)
        hugepages(k)
        k.mount("259:11", "/srv", "/dev/nvme1n1")
        assert f"{TWO} stays with nvme: nvme1n1 is mounted on /srv." in k.say("setup")
        assert [k.driver(bdf) for bdf in (ONE, TWO, THREE)] == ["vfio-pci", "nvme", "vfio-pci"]
        assert pages(k, "sys/kernel/mm/hugepages") == 0
        k.say("setup", "config")
        k.say("setup", "reset")
        assert [k.driver(bdf) for bdf in (ONE, TWO, THREE)] == ["nvme"] * 3 and k.remembered() == {}


def test_setup_which_devices():
    with kernel() as k:
        bdfs = (ONE, TWO, THREE)
        for number, bdf in enumerate(bdfs):
            k.add(bdf, number, group=number)
        for environment, bound in (({"PCI_ALLOWED": "none"}, ()), ({"PCI_ALLOWED": f"{ONE} 10000:E1:00.0"}, (ONE, THREE)),
                                   ({"PCI_BLOCKED": f"{ONE}  02:00.0 "}, (THREE,)), ({"PCI_ALLOWED": f"{ONE} {TWO}", "PCI_BLOCKED": ONE}, (TWO,)),
                                   ({"PCI_ALLOWED": " "}, bdfs)):
            k.say("setup", **environment)
            assert tuple(b for b in bdfs if k.driver(b) == "vfio-pci") == bound, environment
            k.say("setup", "reset")
        k.say("setup")
        k.say("setup", "reset", PCI_ALLOWED=TWO)
        assert [k.driver(b) for b in bdfs] == ["vfio-pci", "nvme", "vfio-pci"]
        assert "there is no NVMe device of that address" in k.say("setup", PCI_ALLOWED="0000:99:00.0")
        assert "PCI_BLOCKED names 'nvme0'" in k.say("setup", PCI_BLOCKED="nvme0", status=2)


def test_setup_other_drivers():
    with kernel() as k:
        k.add(ONE, 0)
        k.say("setup", DRIVER_OVERRIDE="uio_pci_generic")
        assert k.driver(ONE) == "uio_pci_generic"
        k.say("setup", DRIVER_OVERRIDE="none")
        assert k.driver(ONE) is None
        k.say("setup", "reset")
        assert k.driver(ONE) == "nvme"
        assert "insmod" in k.say("setup", DRIVER_OVERRIDE="/lib/igb_uio.ko", status=2)
        assert "no IOMMU group" in k.say("setup", status=1)


def test_setup_goes_on_after_a_failure():
    with kernel() as k:
        k.add(ONE, 0)
        k.add(TWO, 1, group=1)
        hugepages(k)
        k.say("setup", HUGEMEM="64", status=1)
        assert k.driver(ONE) == "nvme" and k.driver(TWO) == "vfio-pci" and pages(k, "sys/kernel/mm/hugepages") == 32


def test_hugepages():
    with kernel() as k:
        hugepages(k)
        everywhere, zero, one = ["sys/kernel/mm/hugepages"] + [f"sys/devices/system/node/node{n}/hugepages" for n in (0, 1)]
        k.say("setup", HUGEMEM="2047")
        assert pages(k, everywhere) == 1024
        k.say("setup", NRHUGE="512", HUGEMEM="4096")  # there are more
        assert pages(k, everywhere) == 1024
        k.say("setup", NRHUGE="5", HUGENODE="0,1", HUGEPGSZ="1048576")
        assert pages(k, zero, 1048576) == pages(k, one, 1048576) == 5 and pages(k, zero) == 0
        k.say("setup", HUGENODE="nodes_hp[1]=7")
        assert pages(k, one) == 7 and pages(k, zero) == 0
        k.say("setup", "reset")
        assert pages(k, one) == 7
        k.say("setup", "reset", CLEAR_HUGE="yes")
        assert pages(k, one) == pages(k, one, 1048576) == pages(k, zero, 1048576) == 0
        k.say("setup", NRHUGE="9", HUGENODE="1")
        k.say("setup", NRHUGE="3", HUGENODE="1", CLEAR_HUGE="yes")
        assert pages(k, one) == 3
        for environment, status, text in (({"HUGEMEM": "lots"}, 2, "not a number"), ({"NRHUGE": "-1"}, 2, "not a number"),
                                          ({"NRHUGE": "1", "HUGENODE": "x"}, 2, "not a NUMA node"), ({"NRHUGE": "1", "HUGENODE": "7"}, 1, "NUMA node 7"),
                                          ({"NRHUGE": "1", "HUGEPGSZ": "4"}, 1, "no hugepages of 4 kB")):
            assert text in k.say("setup", status=status, **environment)


def test_setup_status():
    with kernel() as k:
        assert "TYPE" in k.say("setup", "status")
        k.add(ONE, 0, group=1, namespaces=(1, 2))
        k.add(TWO, driver="vfio-pci", group=2, numa_node="-1")
        hugepages(k)
        k.mount("259:1", "/srv", "/dev/nvme0n1")
        lines = k.say("setup", "status").splitlines()
        assert ["0", "2048kB", "0", "0"] in [line.split() for line in lines]
        assert ["NVMe", ONE, "144d", "a80a", "0", "nvme", "nvme0n1", "nvme0n2"] in [line.split() for line in lines]
        assert ["NVMe", TWO, "144d", "a80a", "-", "vfio-pci", "-"] in [line.split() for line in lines]
        assert f"  {ONE}: nvme0n1 is mounted on /srv" in lines
        told = json.loads(k.say("setup", "status", "--json"))
        assert len(told["hugepages"]) == 4 and told["hugepages"][0] == {"node": 0, "size_kb": 2048, "total": 0, "free": 0}
        assert [d["driver"] for d in told["devices"]] == ["nvme", "vfio-pci"] and told["devices"][0]["block_devices"] == ["nvme0n1", "nvme0n2"]


# --- the configuration ---


def test_config_of_what_is_bound():
    with kernel() as k:
        k.add(ONE, 0, group=1)
        assert "no NVMe device is with vfio-pci" in k.say("list", "--config")
        k.add(TWO, driver="vfio-pci")
        k.add(THREE, driver="uio_pci_generic")
        bdev = json.loads(k.say("list", "--config"))
        assert bdev == {"subsystem": "bdev", "config": [
            {"method": "bdev_nvme_attach_controller", "params": {"trtype": "PCIe", "name": f"Nvme{i}", "traddr": bdf}} for i, bdf in enumerate((TWO, THREE))]}
        assert json.loads(k.say("list", "--json-with-subsystems")) == {"subsystems": [bdev]}


def test_the_command_lines():
    for words, status, text in ((["bind"], 2, "which device"), (["unbind"], 2, "--all"), (["bind", "--all", ONE], 2, "exclude"),
                                (["bind", "--all", "--force"], 2, "named"), (["bind", ONE, "--driver", "../nvme"], 2, "name of a driver"),
                                (["bind", ONE, "--timeout", "0"], 2, "1 to 3600"), (["bind", "--frce"], 2, "--help"), (["unbind", "--driver", "x"], 2, "--help"),
                                (["bind", "--help"], 0, "usage"), (["unbind", "--help"], 0, "usage"), (["setup", "--help"], 0, "PCI_ALLOWED"),
                                (["setup", "help"], 0, "PCI_ALLOWED"), (["setup", "confg"], 2, "reset"), (["setup", "status", "x"], 2, "one verb")):
        done = subprocess.run([RIFFLE, *words], capture_output=True, text=True, timeout=10, check=False)
        assert done.returncode == status and text in done.stdout + done.stderr, (words, done)


def test_interrupted():
    """What is half done is remembered, so that unbind can finish it."""
    with kernel() as k:
        k.add(ONE, 0, group=1)
        k.refuses.add("vfio-pci")
        with subprocess.Popen([RIFFLE, "bind", "--root", k.root, ONE], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bind:
            while k.driver(ONE):
                time.sleep(0.005)
            bind.send_signal(signal.SIGINT)
            bind.wait(10)
        assert k.driver(ONE) is None and k.remembered() == {ONE: "nvme -\n"}
        k.say("unbind", "--all")
        assert k.driver(ONE) == "nvme" and k.override(ONE) == ""
