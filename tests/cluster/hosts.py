"""Two hosts on one machine: network, UTS and mount namespaces of their own, with their own addresses and names, joined by
a veth pair of limited bandwidth. mpirun reaches the second through a stand-in for ssh. Used by the programs beside it.

Everything lives below a PID and a network namespace of the test's own, so that nothing is left when it ends."""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "ranks"))
from jobs import Bench, Failure, processes_below  # noqa: E402

INSIDE = "HEARTH_CLUSTER_INSIDE"
NAMES = ("node1", "node2")
ADDRESSES = ("10.99.0.1", "10.99.0.2")
# To ranks on other hosts; what the sanitizers are told, where there are some.
EXPORTED = ("HEARTH_THREADS", "HEARTH_HISTORY", "HEARTH_HARDWARE", "HEARTH_WATCH_SECONDS", "LSAN_OPTIONS", "ASAN_OPTIONS")

# In the place of ssh: the host's name, then the words of a command, which finds there the environment of a log-in.
AGENT = """#!/bin/sh
host=$1
shift
case $host in
{enter}
esac
exec $enter env -i PATH="$PATH" HOME="$HOME" sh -c "$*"
"""


def skip(why):
    print(f"SKIPPED {os.path.basename(sys.argv[0])}: {why}")
    sys.exit(0)


def enter_own_namespaces():
    """Starts this program again where it may make hosts; says so and ends where that is not permitted."""
    if INSIDE in os.environ:
        run("ip", "link", "set", "lo", "up")
        return
    for tool in ("unshare", "nsenter", "ip", "tc"):
        if not shutil.which(tool):
            skip(f"it needs {tool} (packages util-linux and iproute2)")
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid():
        unshare += ["--user", "--map-root-user"]
    probe = [*unshare, "sh", "-c", "ip link add eth0 type veth peer name eth1 && unshare --net --uts --mount true"]
    tried = subprocess.run(probe, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if tried.returncode:
        skip("namespaces are not permitted here: " + tried.stderr.strip().replace("\n", "; "))
    os.environ[INSIDE] = "1"
    os.execvp("unshare", [*unshare, sys.executable, *sys.argv])


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Host:
    """Its namespaces are those of a process that sleeps."""

    def __init__(self, name, address, hosts_file):
        # A host has no shared memory with others: /dev/shm is its own. A connection over a dead link is given up after 13 s
        # (200 ms, doubled five times) instead of a quarter of an hour: that is when mpirun ends.
        setup = f"hostname {name} && mount --bind {hosts_file} /etc/hosts && mount -t tmpfs tmpfs /dev/shm && ip link set lo up"
        setup += " && echo 5 >/proc/sys/net/ipv4/tcp_retries2"
        self.name, self.address = name, address
        self.sleeper = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "sh", "-c", setup + " && echo && exec sleep infinity"],
                                        stdout=subprocess.PIPE)  # fmt: skip
        if self.sleeper.stdout.read(1) != b"\n":
            raise Failure(f"the host {name} did not come up")
        self.enter = ["nsenter", "-t", str(self.sleeper.pid), "--net", "--uts", "--mount"]

    def run(self, *words):
        return run(*self.enter, *words)

    def processes(self):
        """All that run on it, but not what it is made of."""
        own, found = os.readlink(f"/proc/{self.sleeper.pid}/ns/net"), []
        for process in processes_below(os.getpid()):
            try:
                if os.readlink(f"/proc/{process}/ns/net") == own and process != self.sleeper.pid:
                    found.append(process)
            except OSError:
                pass
        return found

    def kill(self):
        """Every process at once, as far as that goes: until none is left."""
        while found := self.processes():
            for process in found:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def sent_bytes(self):
        return json.loads(self.run("ip", "-json", "-statistics", "link", "show", "eth0"))[0]["stats64"]["tx"]["bytes"]


class Cluster(Bench):
    """A bench whose jobs run on two hosts. rate: of the link, as tc writes it ("50mbit"); None: as fast as it goes."""

    def __init__(self, program, launcher, rate=None):
        super().__init__(program, launcher)
        hosts_file = self.path("hosts")
        with open(hosts_file, "w") as file:
            file.write("127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for a, n in zip(ADDRESSES, NAMES)))
        self.hosts = [Host(name, address, hosts_file) for name, address in zip(NAMES, ADDRESSES)]
        pids = [str(host.sleeper.pid) for host in self.hosts]
        run("ip", "link", "add", "eth0", "netns", pids[0], "type", "veth", "peer", "name", "eth0", "netns", pids[1])
        for host in self.hosts:
            host.run("ip", "address", "add", host.address + "/24", "dev", "eth0")
            host.run("ip", "link", "set", "eth0", "up")
        self.limit_link(rate)
        agent = self.path("enter-host")
        with open(agent, "w") as file:
            enter = "\n".join(f"{host.name}) enter='{' '.join(host.enter)}' ;;" for host in self.hosts)
            file.write(AGENT.format(enter=enter))
        os.chmod(agent, 0o755)
        self.environment.update(
            {
                "OMPI_MCA_plm_rsh_agent": agent,
                "OMPI_MCA_orte_tmpdir_base": self.path(),
                "HEARTH_WATCH_SECONDS": "60",
                "OMPI_MCA_btl": "self,vader,tcp",
                "OMPI_MCA_pml": "ob1",
                "OMPI_MCA_btl_tcp_if_include": "eth0",
                "OMPI_MCA_oob_tcp_if_include": "eth0",
            }
        )

    def limit_link(self, rate):
        for host in self.hosts:
            subprocess.run([*host.enter, "tc", "qdisc", "del", "dev", "eth0", "root"], capture_output=True)
            if rate:
                host.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "200ms")

    def set_link(self, state):
        self.hosts[0].run("ip", "link", "set", "eth0", state)

    def command(self, arguments, ranks, sets=None, special=None):
        """As many ranks on each of both hosts. What a rank prints is kept on its own host, whatever becomes of the link and
        of the launcher, which would pass it on."""
        words = super().command(arguments, ranks, sets, special)
        if ranks == 1:
            return words
        places = ",".join(f"{host.name}:{ranks // 2}" for host in self.hosts)
        exported = [word for name in EXPORTED if name in self.environment for word in ("-x", name)]
        at = words.index("sh")
        kept = f'exec "$@" >{self.printed_path(run_of(arguments), "$OMPI_COMM_WORLD_RANK")} 2>&1'
        return [*self.hosts[0].enter, words[0], "--host", places, *exported, *words[1:at], "sh", "-c", kept, "sh", *words[at:]]

    def printed_path(self, run, rank):
        return self.path(f"{run}.rank-{rank}")

    def printed(self, run, rank):
        with open(self.printed_path(run, rank), errors="replace") as file:
            return file.read()

    def log(self, name="job.log"):
        """The launcher's, and those of the ranks."""
        paths = glob.glob(self.printed_path(glob.escape(name.removesuffix(".log")), "*"))
        return super().log(name) + "".join(open(path, errors="replace").read() for path in sorted(paths))


def run_of(arguments):
    return os.path.basename(arguments[arguments.index("--run") + 1])
