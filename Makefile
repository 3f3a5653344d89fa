# A thin door to meson. `make` builds build/riffle. `sudo make demo` and `sudo make check` install what they need first.

NINJA = ninja -C
SETUP = meson setup $(MESON_ARGS)
SANITIZED = CC=clang $(SETUP) -Db_lundef=false
FUZZ_SECONDS ?= 40

all: build/build.ninja
	$(NINJA) build

build/build.ninja:
	$(SETUP) build
build-asan/build.ninja:
	$(SANITIZED) -Db_sanitize=address,undefined build-asan
build-tsan/build.ninja:
	$(SANITIZED) -Db_sanitize=thread build-tsan
build-fuzz/build.ninja:
	$(SANITIZED) -Db_sanitize=address,undefined -Dfuzzers=true -Dunit_tests=disabled build-fuzz

deps:
	scripts/deps

demo: deps
	$(MAKE) all
	scripts/demo

# Everything, about 25 minutes on two cores: unit tests, the real daemon, real guests, all again under sanitizers, fuzzing.
check: deps
	$(MAKE) all asan-build tsan-build fuzz-build
	FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/check

# What takes a minute, without installing anything: for between two edits.
quick: all
	scripts/check layers size format unit quiet

asan-build: build-asan/build.ninja
	$(NINJA) build-asan
tsan-build: build-tsan/build.ninja
	$(NINJA) build-tsan
fuzz-build: build-fuzz/build.ninja
	$(NINJA) build-fuzz

asan: deps
	$(MAKE) asan-build
	scripts/check asan

tsan: deps
	$(MAKE) tsan-build
	scripts/check tsan

# For hours: make fuzz FUZZ_SECONDS=36000
fuzz: deps
	$(MAKE) fuzz-build
	FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/check fuzz

# Against qemu-storage-daemon, and instructions per I/O; docs/performance.md says how to read it.
bench: deps
	$(MAKE) all
	scripts/cost
	scripts/cost-lines vhost-null vhost-null-packed
	scripts/check quiet
	scripts/bench
	scripts/bench-cores

format:
	find src test -name '*.[ch]' | xargs clang-format -i

install: all
	meson install -C build

clean:
	rm -rf build build-asan build-tsan build-fuzz

.PHONY: all deps demo check quick asan-build tsan-build fuzz-build asan tsan fuzz bench format install clean
