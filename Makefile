# For people: each target does its own set-up. CMake does the work; PRESET=debug|asan|tsan|all-gpus picks another build.
PRESET ?= release
FOLDER = $(if $(filter release ci,$(PRESET)),build,build-$(PRESET))
PREFIX ?= /usr/local
export JOBS ?= $(shell nproc)

build: deps
	@scripts/build $(PRESET)
deps:
	@scripts/install-deps
test: build
	@ctest --preset $(PRESET) -j $(JOBS) -LE ranks
	@grep -hs '^SKIPPED' build*/Testing/Temporary/LastTest.log | sort -u || true
test-ranks: build # collectives, and whole jobs of many ranks against one, resumed on other meshes, and with faults
	@ctest --preset $(PRESET) -L ranks
	@for subject in equal context reshard faults commands diloco fp8 fp16; do python3 tests/ranks/test_$$subject.py build/hearth || failed=1; done; \
	python3 tests/cluster/test_hosts.py build/hearth || failed=1; [ -z "$$failed" ]
mesh-fuzz: build # random models and meshes of up to 8 ranks against one: SECONDS=1800 SEED=1 PRECISION=fp8
	@scripts/mesh-fuzz build/tests/mesh_fuzz --seconds $(or $(SECONDS),60) --seed $(or $(SEED),1) --precision $(or $(PRECISION),fp32)
demo: build
	@scripts/demo
bench: build
	build/cpu_step
mutants: deps # changes the program in many small places, one at a time: which change does no test notice? MUTANTS='-j 2 ^data-'
	@tests/mutants/run $(MUTANTS)
fuzz: deps # every parser against any input: SECONDS for each target (default 20), until there were EXECUTIONS in all
	@tests/fuzz/run $(if $(EXECUTIONS),--until $(EXECUTIONS)) $(SECONDS)
torture: build # kills, full disks and other faults at random for MINUTES (default 2); SEED=S CASE=N repeats a case
	@tests/torture/run --minutes $(or $(MINUTES),2) $(if $(SEED),--seed $(SEED)) $(if $(CASE),--case $(CASE)) $(TORTURE)
install: build # under PREFIX: program, configurations, manual pages, completions; DESTDIR stands before it for packagers
	@DESTDIR='$(DESTDIR)' cmake --install $(FOLDER) --prefix '$(abspath $(PREFIX))' >$(FOLDER)/install.log
	@echo "installed $(DESTDIR)$(abspath $(PREFIX))/bin/hearth"
uninstall:
	@DESTDIR='$(DESTDIR)' cmake -DPREFIX='$(abspath $(PREFIX))' -P cmake/HearthUninstall.cmake
format:
	@scripts/format
clean:
	rm -rf build build-*

.PHONY: build deps test test-ranks mesh-fuzz demo bench mutants fuzz torture install uninstall format clean
