"""hearth as it is installed: found from any folder, with manual pages and completions that shells and man take."""
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve().parent


def run(*words, code=0, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    assert done.returncode == code, f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="hearth-test-"))
        cls.prefix = cls.folder / "prefix"
        cls.elsewhere = cls.folder / "elsewhere"
        cls.elsewhere.mkdir()
        (cls.elsewhere / "mine.toml").write_text("")
        (cls.elsewhere / "notes.txt").write_text("")
        (cls.elsewhere / "runs").mkdir()
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        cls.program = cls.prefix / "bin/hearth"
        cls.environment = {"PATH": f"{cls.program.parent}:{os.environ['PATH']}", "HOME": str(cls.folder), "TERM": "dumb",
                           "HEARTH_HISTORY": "", "LSAN_OPTIONS": os.environ.get("LSAN_OPTIONS", "")}

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def hearth(self, *words, **options):
        return run("hearth", *words, cwd=self.elsewhere, env=self.environment, **options)

    def pages(self):
        return sorted((self.prefix / "share/man/man1").glob("*.1"))


class Files(Installed):
    def test_catalogue_and_configurations_are_those_beside_the_program(self):
        configs = self.prefix / "share/hearth/configs"
        with open(configs / "hardware.toml", "a", encoding="utf-8") as catalogue:
            catalogue.write('[node.only-installed]\ntitle = "a node"\ngpu = "h100-sxm"\ngpus = 8\n')
        demo = (configs / "demo.toml").read_text()
        (configs / "demo.toml").write_text(re.sub(r"(?m)^seq = \d+", "seq = 97", demo))
        self.assertIn("H100", self.hearth("plan", "smollm-360m", "--node", "only-installed"))
        self.assertIn("seq = 97", self.hearth("config", "configs/demo.toml"))

    def test_a_file_here_goes_before_the_installed_one(self):
        here = self.elsewhere / "configs"
        here.mkdir()
        (here / "demo.toml").write_text("[train]\nseq = 51\nsteps = 20\n[model]\npreset = \"smollm-360m\"\n")
        self.assertIn("seq = 51", self.hearth("config", "configs/demo.toml"))
        shutil.rmtree(here)

    def test_a_name_that_is_nowhere_is_told_as_it_was_written(self):
        self.assertIn("configs/none.toml", self.hearth("config", "configs/none.toml", code=2))

    def test_no_library_is_looked_for_in_the_build(self):
        self.assertNotIn(str(BUILD), run("readelf", "-d", self.program))

    def test_uninstalling_leaves_nothing_and_touches_nothing_else(self):
        prefix = self.folder / "other"
        run("cmake", "--install", BUILD, "--prefix", prefix)
        stranger = prefix / "share/man/man1/stranger.1"
        stranger.write_text("")
        run("cmake", f"-DPREFIX={prefix}", "-P", ROOT / "cmake/HearthUninstall.cmake")
        self.assertEqual([path for path in prefix.rglob("*") if path.is_file()], [stranger])
        self.assertFalse((prefix / "share/hearth").exists())
        self.assertIn("no hearth is installed", run("cmake", f"-DPREFIX={prefix}", "-P",
                                                    ROOT / "cmake/HearthUninstall.cmake", code=1))

    def test_destdir_stands_before_the_prefix(self):
        stage = {**os.environ, "DESTDIR": str(self.folder / "stage")}
        run("cmake", "--install", BUILD, "--prefix", "/opt/hearth", env=stage)
        program = self.folder / "stage/opt/hearth/bin/hearth"
        self.assertTrue(program.exists())
        run("cmake", "-DPREFIX=/opt/hearth", "-P", ROOT / "cmake/HearthUninstall.cmake", env=stage)
        self.assertFalse(program.exists())


class Version(Installed):
    def test_it_tells_commit_features_instruction_set_and_gpus(self):
        said = self.hearth("--version")
        self.assertRegex(said, r"^hearth \d+\.\d+\.\d+, commit (unknown|\w+(-dirty)?)\n")
        self.assertRegex(said, r"\nCPU: +\S+ \(.+\), of \S+")
        self.assertRegex(said, r"\nCUDA: +(none|sm_\w+( sm_\w+)*)\n")
        table = (BUILD / "features.txt").read_text()
        for state, line in (("in", "with"), ("out", "without")):
            names = re.findall(rf"^  (\w+) +{state} ", table, re.MULTILINE) or ["nothing"]
            self.assertEqual(re.search(rf"^{line}: +(.*)$", said, re.MULTILINE)[1].split(), names)


class Manual(Installed):
    def test_every_command_has_a_page_with_its_options(self):
        listed = re.findall(r"^  (\S+) ", self.hearth("--help"), re.MULTILINE)
        self.assertGreater(len(listed), 12)
        self.assertEqual({page.name for page in self.pages()}, {"hearth.1", *(f"hearth-{name}.1" for name in listed)})
        page = (self.prefix / "share/man/man1/hearth-data.1").read_text()
        for command in re.findall(r"^  (\S+) ", self.hearth("data", "--help"), re.MULTILINE):
            self.assertIn(f'.SS "hearth data {command}"'.replace("-", r"\-"), page)
            for option in re.findall(r"^  (--\S+)", self.hearth("data", command, "--help"), re.MULTILINE):
                self.assertIn(r"\fB" + option.replace("-", r"\-") + r"\fR", page)

    def test_the_page_of_config_has_every_key(self):
        page = (self.prefix / "share/man/man1/hearth-config.1").read_text()
        keys = re.findall(r"^  (\w+) .*; default ", self.hearth("config", "--help"), re.MULTILINE)
        self.assertGreater(len(keys), 80)
        for key in keys:
            self.assertIn(f".TP\n\\fB{key}\\fR ", page)

    def test_every_variable_that_the_program_reads_is_told(self):
        page = (self.prefix / "share/man/man1/hearth.1").read_text()
        sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.c*"))
        names = set(re.findall(r'(?:getenv|home_path)\("(HEARTH_\w+)"', sources))
        self.assertGreater(len(names), 6)
        self.assertEqual({name for name in names if name not in page}, set())

    @unittest.skipUnless(shutil.which("mandoc"), "mandoc")
    def test_mandoc_finds_nothing_wrong(self):
        for page in self.pages():
            said = run("mandoc", "-Tlint", "-Wwarning", page, code=2)  # for the date: pages tell the version
            self.assertEqual([line for line in said.splitlines() if "missing date" not in line], [])

    @unittest.skipUnless(shutil.which("man") and shutil.which("groff"), "man")
    def test_man_shows_the_pages_without_a_warning(self):
        for page in self.pages():
            shown = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True,
                                   env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C"})
            self.assertEqual(shown.stderr, "")
            self.assertIn("SEE ALSO", shown.stdout)


# (what is typed, what must be offered, what must not)
CASES = (
    ("hearth pl", {"plan"}, {"train"}),
    ("hearth ", {"plan", "train", "data"}, {"complete"}),
    ("hearth data pre", {"prepare"}, {"plan"}),
    ("hearth train --re", {"--resume", "--rescue"}, {"--run"}),
    ("hearth train --set train.prec", {"train.precision="}, {"train.seq="}),
    ("hearth train --set train.precision=bf", {"bf16", "bf16-pure"}, {"fp32"}),
    ("hearth train --set train.precision=", {"bf16", "fp32"}, {"true"}),
    ("hearth train --set train.graph=", {"true", "false"}, set()),
    ("hearth train --set model.preset=smol", {"smollm-360m"}, set()),
    ("hearth plan smol", {"smollm-360m"}, {"notes.txt"}),
    ("hearth plan m", {"mine.toml"}, {"notes.txt"}),
    ("hearth plan smollm-360m --gpu h2", {"h200-sxm"}, {"h100-sxm"}),
    ("hearth plan smollm-360m --gpu=h2", {"h200-sxm"}, {"h100-sxm"}),
    ("hearth plan smollm-360m --node dgx-h", {"dgx-h100"}, {"h100-sxm"}),
    ("hearth plan smollm-360m --json --html n", {"notes.txt"}, {"--json"}),
    ("hearth train ", {"mine.toml", "runs"}, {"notes.txt", "--set"}),
    ("hearth train mine.toml --run r", {"runs"}, {"mine.toml"}),
    ("hearth runs c", {"compare", "csv"}, {"keys"}),
    ("hearth runs rm r", {"runs"}, {"compare"}),
    ("hearth calc ring_allreduce_m", {"ring_allreduce_ms"}, set()),
    ("hearth calc ring_allreduce_ms M", {"M_GB="}, {"ring_allreduce_ms"}),
    ("hearth completion ", {"bash", "zsh"}, set()),
    ("hearth man tr", {"train"}, {"plan"}),
)

BASH = r"""
source "$1"
while IFS= read -r COMP_LINE; do
    COMP_POINT=${#COMP_LINE}
    read -ra COMP_WORDS <<<"${COMP_LINE//=/ = }"
    [[ $COMP_LINE == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _hearth hearth "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    printf '%s\t' "${COMPREPLY[@]}"
    echo
done
"""


class Completion(Installed):
    def test_bash_is_offered_what_fits(self):
        script = self.prefix / "share/bash-completion/completions/hearth"
        said = run("bash", "--norc", "-c", BASH, "bash", script, cwd=self.elsewhere, env=self.environment,
                   input="".join(line + "\n" for line, _, _ in CASES))
        answers = said.splitlines()
        self.assertEqual(len(answers), len(CASES), said)
        for (line, offered, not_offered), answer in zip(CASES, answers):
            got = set(answer.split("\t"))
            self.assertLessEqual(offered, got, line)
            self.assertEqual(not_offered & got, set(), line)

    def type_into(self, shell, script, keys, want, tries=60):
        """Types into a shell on a terminal of its own, until `want` is seen."""
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(self.elsewhere)
            os.execvpe(shell[0], shell, {**self.environment, "PS1": "> "})
        seen = ""
        try:
            os.write(terminal, (script + "\necho rea''dy\n").encode())
            for wanted, typed in (("ready", keys), (want, "")):
                until = time.monotonic() + tries
                while wanted not in seen:
                    self.assertLess(time.monotonic(), until, f"{wanted} did not come: {seen}")
                    if select.select([terminal], [], [], 1)[0]:
                        seen += os.read(terminal, 65536).decode(errors="replace")
                seen = ""
                os.write(terminal, typed.encode())
        finally:
            os.write(terminal, b"\x03\x15exit\n")
            os.close(terminal)
            os.waitpid(child, 0)

    # The keys make `hearth config --presets`, and its answer is seen.
    def test_a_tab_in_bash_completes(self):
        script = f"source {self.prefix}/share/bash-completion/completions/hearth"
        self.type_into(["bash", "--norc", "--noprofile", "-i"], script, "hearth conf\t--pres\t\n", "parameters, ")

    @unittest.skipUnless(shutil.which("zsh"), "zsh")
    def test_a_tab_in_zsh_completes(self):
        script = (f"fpath=({self.prefix}/share/zsh/site-functions $fpath); autoload -U compinit; "
                  f"compinit -u -d {self.folder}/zcompdump; bindkey '^I' complete-word")
        self.type_into(["zsh", "-f", "-i"], script, "hearth conf\t--pres\t\n", "parameters, ")
        self.type_into(["zsh", "-f", "-i"], script,
                       "hearth config --set model.preset=smol\t--set train.prec\tfp32 | grep ^prec\n", 'precision = "fp32"')
        self.type_into(["zsh", "-f", "-i"], script, "hearth plan min\t\n", "mine.toml")


if __name__ == "__main__":
    for tool in ("mandoc", "man", "zsh"):
        if not shutil.which(tool):
            print(f"SKIPPED test_install in part: there is no {tool}")
    unittest.main()
