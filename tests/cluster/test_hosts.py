"""A job on two hosts: it trains as on one, a link that is pulled or a host that dies ends the ranks of both within the limit
with who is missing, and the run goes on afterwards with the curve of the undisturbed one."""

import re
import time

from hosts import Cluster, enter_own_namespaces
from jobs import Bench, Failure, Mesh, Run, main, read_tensors, until_met, wait_until
from models import MODELS, config_text

WATCH_SECONDS = 4
LIMIT_SECONDS = 60  # WATCH_SECONDS and what a loaded machine takes to say so
STEPS = 60
RATE = "20mbit"


class Hosts:
    def __init__(self, cluster):
        self.cluster, self.whole = cluster, {}
        self.config = cluster.config("hosts", config_text(MODELS["dense"], cluster.data("data", 60), STEPS))

    def sets(self, mesh):
        return {"train.grad_accum": 4 // mesh.dp, "checkpoint.every": 10}

    def undisturbed(self, mesh):
        if mesh.name not in self.whole:
            self.whole[mesh.name] = self.cluster.train(self.config, mesh, f"whole-{len(self.whole)}", self.sets(mesh))
        return self.whole[mesh.name]

    def trains_as_one_host(self, mesh):
        """The bits do not depend on where ranks are; and they did talk over the link, at its rate."""
        first, second = (host.sent_bytes() for host in self.cluster.hosts)
        begin = time.monotonic()
        run = self.undisturbed(mesh)
        seconds = time.monotonic() - begin
        sent = [host.sent_bytes() - before for host, before in zip(self.cluster.hosts, (first, second))]
        alone = Bench(self.cluster.program, self.cluster.launcher)
        alone.environment["OMPI_MCA_orte_tmpdir_base"] = alone.path()
        try:
            one = alone.train(self.config, mesh, "one", self.sets(mesh))
            if one.curve() != run.curve():
                raise Failure("two hosts have another curve than one")
        finally:
            alone.close()
        weights = read_tensors(run.checkpoint(STEPS) + "/model.safetensors")
        # dp 2: each rank sends its gradients of every step, half of them as a sum to be made and half as one made.
        gradients = STEPS * 4 * sum(len(values) for values in weights.values())
        if min(sent) < gradients // 2:
            raise Failure(f"{sent} bytes went over the link, where the gradients alone are {gradients}")
        least = 8 * max(sent) / (float(RATE.removesuffix("mbit")) * 1e6)
        if seconds < 0.8 * least:
            raise Failure(f"it took {seconds:.1f} s, and the link alone needs {least:.1f}")
        return f"{sent[0] / 1e6:.1f} and {sent[1] / 1e6:.1f} MB over the link in {seconds:.1f} s"

    def start(self, name, mesh):
        run = Run(self.cluster.path(name))
        words, environment = ["train", self.config, "--run", run.path], {"HEARTH_WATCH_SECONDS": str(WATCH_SECONDS)}
        job = self.cluster.start(words, mesh.size, {**mesh.sets(), **self.sets(mesh)}, name + ".log", environment=environment)
        wait_until(lambda: run.last_step() >= 15, "its steps", job)
        return job

    def ends(self, job, name, texts):
        """On both hosts, within the limit. texts: {rank: an expression for what it must have said}."""
        begin = time.monotonic()
        wait_until(lambda: job.poll() is not None, "an end of mpirun", seconds=LIMIT_SECONDS)
        for host in self.cluster.hosts:
            wait_until(lambda: not host.processes(), f"an end of all ranks on {host.name}", seconds=LIMIT_SECONDS)
        seconds = time.monotonic() - begin
        wrong = [f"exit code {job.returncode}"] if job.returncode == 0 else []
        for rank, text in texts.items():
            said = self.cluster.printed(name, rank)
            if not re.search(text, said):
                wrong.append(f"rank {rank} said {said!r}, and not {text}")
        if wrong:
            raise Failure(f"{'; '.join(wrong)}\n{self.cluster.log(name + '.log')}")
        return f"ended in {seconds:.1f} s"

    def goes_on(self, name, mesh):
        run = self.cluster.resume(name, mesh, {"train.grad_accum": 4 // mesh.dp})
        if run.curve() != self.undisturbed(mesh).curve():
            raise Failure("it went on with another curve")

    def pulled_link(self, mesh):
        """Each side names a rank of the other. (Of several ranks on a side the first speaks for all.)"""
        name, half = f"pulled-{mesh.size}", mesh.size // 2
        self.undisturbed(mesh)
        job = self.start(name, mesh)
        self.cluster.set_link("down")
        try:
            lost = "has not answered for .* s: stopped, or its host is lost"
            stuck = f"has not ended within {WATCH_SECONDS} s, at step "
            theirs = rf"{stuck}(.|\n)*rank {half} of {mesh.size} \(process \d+ on node2\) {lost}"
            ours = rf"{stuck}(.|\n)*rank 0 of {mesh.size} \(process \d+ on node1\) {lost}"
            found = self.ends(job, name, {0: theirs, half: ours})
        finally:
            self.cluster.set_link("up")
        self.goes_on(name, mesh)
        return found

    def killed_host(self, mesh, number):
        """The ranks of the other one end too, and the first of them names one of this."""
        name, half, victim = f"killed-{mesh.size}-{number}", mesh.size // 2, self.cluster.hosts[number]
        self.undisturbed(mesh)
        job = self.start(name, mesh)
        victim.kill()
        died = rf"rank \d of {mesh.size} \(process \d+ on {victim.name}\) died without a message"
        found = self.ends(job, name, {half if number == 0 else 0: died})
        self.goes_on(name, mesh)
        return found


def tests(cluster, quick):
    hosts, both, many = Hosts(cluster), Mesh(2), Mesh(2, 2, 3)
    found = [("two hosts train as one does", hosts.trains_as_one_host, both)]
    for mesh in (both,) if quick else (both, many):
        found += [
            (f"{mesh.name}: a link that is pulled", until_met, hosts.pulled_link, mesh),
            (f"{mesh.name}: the second host is killed", until_met, hosts.killed_host, mesh, 1),
        ]
    for mesh in (many,) if quick else (both, many):  # of four ranks the second, whose turn it would be, is lost too
        name = f"{mesh.name}: the first host is killed, and the launcher with it"
        found.append((name, until_met, hosts.killed_host, mesh, 0))
    return found


if __name__ == "__main__":
    enter_own_namespaces()
    main(__doc__, tests, lambda program, launcher: Cluster(program, launcher, RATE))
