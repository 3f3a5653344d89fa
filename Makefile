# A thin door to meson. `make` builds build/riffle; `sudo make demo` and `sudo make check` install what they need first.

BUILD ?= build
NINJA = ninja -C
SANITIZE_ENV = ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

all: $(BUILD)/build.ninja
	$(NINJA) $(BUILD)

$(BUILD)/build.ninja:
	meson setup $(BUILD)

deps:
	scripts/deps

demo: deps
	$(MAKE) all
	scripts/demo

check: deps
	$(MAKE) all
	scripts/check --build $(BUILD) $(SUITES)

# The suites that no sanitizer gets in the way of: all but real guests and counted system calls.
asan: deps
	test -f build-asan/build.ninja || CC=clang meson setup build-asan -Db_sanitize=address,undefined -Db_lundef=false
	$(NINJA) build-asan
	$(SANITIZE_ENV) scripts/check --build build-asan unit integration ring

tsan: deps
	test -f build-tsan/build.ninja || CC=clang meson setup build-tsan -Db_sanitize=thread -Db_lundef=false
	$(NINJA) build-tsan
	TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 scripts/check --build build-tsan unit $(TSAN_SUITES)

# FUZZ_SECONDS per target; CI takes 60, a night takes as many as it has.
FUZZ_SECONDS ?= 3600
fuzz: deps
	test -f build-fuzz/build.ninja || CC=clang meson setup build-fuzz -Db_sanitize=address,undefined -Db_lundef=false -Dfuzzers=true -Dunit_tests=disabled
	$(NINJA) build-fuzz
	scripts/fuzz build-fuzz $(FUZZ_SECONDS)

format:
	clang-format -i $$(find src test -name '*.[ch]')

install: all
	meson install -C $(BUILD)

clean:
	rm -rf build build-asan build-tsan build-fuzz

.PHONY: all deps demo check asan tsan fuzz format install clean
