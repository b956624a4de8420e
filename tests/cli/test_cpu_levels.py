"""One binary for every x86-64 CPU: which code runs is chosen at start-up, and every choice trains."""
import re
import shutil
import subprocess

from program import HEARTH, Case, pathlib, unittest

LEVELS = ("v1", "v3", "v4")


def version(environment=None, before=()):
    return subprocess.run([*before, HEARTH, "--version"], env=environment, capture_output=True, text=True, check=True).stdout


BUILT = re.search(r"^CPU: +(\S+) .*of ([\w ]+)$", version(), re.MULTILINE)
CHOSEN, IN_BUILD = BUILT[1], BUILT[2].split()


class CpuBf16(Case):
    def test_what_multiplies_bf16_is_said_and_planned_with(self):
        catalogue = str(pathlib.Path(__file__).resolve().parents[2] / "configs" / "hardware.toml")
        titles = {"AMX": "CPU with AMX", "AVX512-BF16": "CPU", "floats": "CPU"}
        for asked in ("", "0"):  # the best, and none
            env = {"HEARTH_CPU_BF16": asked, "HEARTH_HARDWARE": catalogue}
            by = re.search(r"^bf16: +by (.+)$", self.hearth("--version", env=env), re.MULTILINE)[1]
            self.assertIn(by, titles if not asked else ["floats"])
            self.assertIn(f" on 1 x {titles[by]}\n", self.hearth("plan", self.config, "--set", "train.device=cpu", "--no-machine", env=env))
            self.hearth("train", self.config, "--run", self.run_folder, env=env)
            environment = (self.run_folder / "environment.json").read_text()
            self.assertEqual(f'"cpu_bf16": "{by}"' in environment, by != "floats")
            self.assertEqual('"device": "cpu-amx"' in environment, by == "AMX")
            shutil.rmtree(self.run_folder)


class CpuLevels(Case):
    def setUp(self):
        super().setUp()
        if len(IN_BUILD) < 2:
            self.skipTest("one instruction set")

    def losses(self, level, threads=1):
        run = self.folder / f"{level}-{threads}"
        self.hearth("train", self.config, "--run", run, "--set", f"train.threads={threads}", env={"HEARTH_CPU": level})
        return [line["loss"] for line in self.lines(run) if "loss" in line]

    def here(self):
        return LEVELS[:LEVELS.index(CHOSEN) + 1]

    def test_the_best_that_the_cpu_has_is_taken(self):
        flags = re.search(r"^flags.*", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)[0].split()
        want = "v4" if "avx512vl" in flags else "v3" if {"avx2", "fma"} <= set(flags) else "v1"
        self.assertEqual(CHOSEN, want)

    def test_the_name_in_the_environment_is_what_runs(self):
        for level in self.here():
            self.hearth("train", self.config, "--run", self.run_folder, env={"HEARTH_CPU": level})
            self.assertIn(f'"cpu_level": "{level}"', (self.run_folder / "environment.json").read_text())
            shutil.rmtree(self.run_folder)

    def test_other_names_are_refused(self):
        said = self.hearth("train", self.config, code=2, env={"HEARTH_CPU": "v9"})
        self.assertIn('HEARTH_CPU is "v9", and this hearth has code for: v1 v3 v4', said)

    def test_every_level_trains_to_the_same_losses(self):
        # Steps before the first update differ by one pass's rounding, 1e-6; then as docs/numerics.md bounds two fp32
        # implementations of one model, 2e-4 over 20 steps.
        plain = self.losses("v1")
        self.assertEqual(len(plain), 6)
        for level in self.here()[1:]:
            other = self.losses(level)
            self.assertLess(abs(other[0] / plain[0] - 1), 1e-6, level)
            for a, b in zip(plain, other, strict=True):
                self.assertLess(abs(b / a - 1), 2e-4, level)

    def test_within_a_level_the_number_of_threads_changes_no_bit(self):
        for level in self.here():
            self.assertEqual(self.losses(level), self.losses(level, threads=3), level)

    def test_no_wide_instruction_outside_the_copies_for_wide_cpus(self):
        if not shutil.which("objdump"):
            self.skipTest("objdump")
        # Every name in a copy is local but its way in, so what is global is compiled for every CPU.
        code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", HEARTH], capture_output=True, text=True).stdout
        names = subprocess.run(["nm", HEARTH], capture_output=True, text=True).stdout
        everywhere = dict(re.findall(r"^([0-9a-f]+) T (?!cpu_install_v)(\S+)$", names, re.MULTILINE))
        self.assertGreater(len(everywhere), 1000)
        name = None
        for line in code.splitlines():
            head = re.match(r"([0-9a-f]+) <.+>:$", line)
            if head:
                name = everywhere.get(head[1])
            elif name and re.search(r"%[yz]mm", line):
                self.fail(f"{name}: {line}")


class OlderCpus(Case):
    """Under an emulator that knows only what the named CPU knew: one instruction more ends the program."""

    def setUp(self):
        super().setUp()
        if not shutil.which("qemu-x86_64"):
            self.skipTest("qemu-x86_64")
        if "v1" not in IN_BUILD:
            self.skipTest("one kind of CPU")

    def on(self, cpu, *arguments, code=0):
        emulator = ["qemu-x86_64", "-cpu", cpu]
        done = subprocess.run([*emulator, HEARTH, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                              timeout=240)
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, code, said)
        return said

    def test_a_cpu_of_2008_trains(self):
        self.assertRegex(self.on("Nehalem", "--version"), r"CPU: +v1 ")
        self.on("Nehalem", "train", self.config, "--run", self.run_folder, "--set", "train.steps=2", "--set", "schedule.warmup_steps=1",
                "--set", "eval.at_end=false")
        self.assertEqual([line["step"] for line in self.lines() if "loss" in line], [1, 2])

    def test_a_cpu_of_2013_trains_with_what_it_has(self):
        if "v3" not in IN_BUILD:
            self.skipTest("no AVX2")
        self.assertRegex(self.on("Haswell", "--version"), r"CPU: +v3 ")
        self.on("Haswell", "train", self.config, "--run", self.run_folder, "--set", "train.steps=2", "--set", "schedule.warmup_steps=1",
                "--set", "eval.at_end=false")

    def test_what_the_cpu_has_not_is_refused(self):
        if "v3" not in IN_BUILD:
            self.skipTest("no AVX2")
        said = subprocess.run(["qemu-x86_64", "-cpu", "Nehalem", "-E", "HEARTH_CPU=v3", HEARTH, "--version"],
                              capture_output=True, text=True)
        self.assertEqual(said.returncode, 2)
        self.assertIn('HEARTH_CPU is "v3", and this CPU has no AVX2 and FMA', said.stderr)


if __name__ == "__main__":
    if len(IN_BUILD) < 2:
        print("SKIPPED test_cpu_levels: this build has code for one instruction set alone")
    for tool, package in (("qemu-x86_64", "qemu-user"), ("objdump", "binutils")):
        if not shutil.which(tool):
            print(f"SKIPPED test_cpu_levels in part: there is no {tool} (package {package})")
    unittest.main()
