"""Starts and stops whole clusters of daemons for the end-to-end tests: real processes, loopback."""
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(os.environ.get("KERN_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("KERN_BUILD_DIR", ROOT / "build"))
BIN = BUILD / "bin"
# "gpu:0": the same tests on a GPU that all processes share, under NVIDIA's MPS.
DEVICE = os.environ.get("KERN_E2E_DEVICE", "host")
WORK = BUILD / ("e2e" if DEVICE == "host" else "e2e-gpu")
# The small trained model, or another checkpoint to be judged in its place.
MODEL = pathlib.Path(os.environ.get("KERN_MODEL", ROOT / "k3/nano/model"))


def tool(*args, **options):
    """Runs one of build/bin to its end and returns what it printed."""
    done = subprocess.run([str(BIN / args[0]), *map(str, args[1:])], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=options.get("timeout", 300))
    if done.returncode != options.get("rc", 0):
        raise AssertionError(f"{' '.join(map(str, args))} exited {done.returncode}:\n{done.stdout}")
    return done.stdout


def free_ports(count):
    """Ports that were free a moment ago, below the range from which the system takes ports for clients."""
    with contextlib.ExitStack() as stack:
        ports = []
        while len(ports) < count:
            sock = stack.enter_context(socket.socket())
            port = random.randrange(12000, 32000)
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", port))
                ports.append(port)
        return ports


def made_by():
    """What a manifest depends on beside its config: the generator, and the kernels that it pins."""
    modules = BUILD / "lib/kern"
    files = [BIN / "k3-gen", *sorted(modules.glob("*.so"))]
    if DEVICE != "host":
        files += sorted(modules.glob("cuda/*.cubin"))
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


def artifacts(config="k3-nano", stages=8, ranks=8, max_seqs=None, chunk=None, plain=False):
    """A checkpoint and its manifests, made once a build. `config`: a folder that holds a checkpoint, or
    the name of one of k3/configs, of which a random one is made."""
    if isinstance(config, pathlib.Path):
        checkpoint = config
        digest = hashlib.sha256((checkpoint / "config.json").read_bytes()).hexdigest()
        name = f"{config.name}-{digest[:12]}"
    else:
        checkpoint, name = WORK / f"{config}-checkpoint", config
        if not (checkpoint / "config.json").exists():
            tool("k3-checkpoint", "--config", ROOT / f"k3/configs/{config}.json", "--seed", 1, "-o", checkpoint)
    folder = WORK / f"{name}-{stages}-{ranks}-{max_seqs}-{chunk}{'-plain' if plain else ''}"
    done, stamp = folder / "done", made_by()
    if not done.exists() or done.read_text() != stamp:
        folder.mkdir(parents=True, exist_ok=True)
        common = ["--config", checkpoint / "config.json", "--device", "host" if DEVICE == "host" else "cuda"]
        common += ["--plain"] if plain else []
        # Blocks that wait for a peer leave room for the peer's own kernels on the one GPU.
        shared = [] if DEVICE == "host" else ["--collective-blocks", 2]
        sizes = (["--max-seqs", max_seqs] if max_seqs else []) + (["--chunk", chunk] if chunk else [])
        tool("k3-gen", "prefill", *common, "--stages", stages, "-o", folder / "prefill", *sizes)
        tool("k3-gen", "decode", *common, "--ranks", ranks, "-o", folder / "decode.json", *shared)
        tool("k3-gen", "one-rank", *common, "-o", folder / "one.json", *sizes)
        done.write_text(stamp)
    return checkpoint, folder


class Process:
    def __init__(self, name, command, log):
        self.name, self.command, self.log = name, [str(c) for c in command], log
        self.start()

    def start(self):
        with open(self.log, "ab") as out:
            self.popen = subprocess.Popen(self.command, stdout=out, stderr=subprocess.STDOUT)

    def kill(self, sig=signal.SIGKILL):
        self.popen.send_signal(sig)

    def wait(self, seconds=20):
        return self.popen.wait(seconds)

    def alive(self):
        return self.popen.poll() is None

    def text(self):
        return pathlib.Path(self.log).read_text(errors="replace")

    def rss_kib(self):
        with open(f"/proc/{self.popen.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


class Cluster:
    """Eight stages and one group of eight ranks by default; `config` as `artifacts` takes it."""

    def __init__(self, config="k3-nano", stages=8, ranks=8, groups=1, stage_flags=(), rank_flags=(),
                 max_seqs=None, chunk=None, key=None, wait=True, plain=False, rank_devices=None):
        """`rank_devices`: where each rank runs, if not where all else does."""
        self.checkpoint, self.folder = artifacts(config, stages, ranks, max_seqs, chunk, plain)
        self.logs = tempfile.mkdtemp(prefix="kern-e2e-")
        self.port, self.control, self.decode, *self.rank_ports = free_ports(3 + groups)
        self.url = f"http://127.0.0.1:{self.port}"
        secret = ["--cluster-key-file", key] if key else []
        self.stages, self.groups = [], []
        for s in range(stages):
            place = ["--port", self.port, "--listen", f"127.0.0.1:{self.control}",
                     "--decode-listen", f"127.0.0.1:{self.decode}"] if s == 0 else \
                    ["--head", f"127.0.0.1:{self.control}"]
            self.stages.append(self.spawn(f"stage{s}", "k3-prefill-stage", "--manifest",
                                          self.folder / f"prefill/stage{s}.json", "--weights", self.checkpoint,
                                          *place, *secret, *stage_flags))
        for g in range(groups):
            members = []
            for r in range(ranks):
                place = ["--listen", f"127.0.0.1:{self.rank_ports[g]}", "--decode", f"127.0.0.1:{self.decode}"] \
                    if r == 0 else ["--head", f"127.0.0.1:{self.rank_ports[g]}"]
                members.append(self.spawn(f"group{g}rank{r}", "k3-decode-rank", "--manifest",
                                          self.folder / "decode.json", "--weights", self.checkpoint, "--rank", r,
                                          *place, *secret, *rank_flags,
                                          device=rank_devices[r] if rank_devices else DEVICE))
            self.groups.append(members)
        if wait:
            self.wait_healthy()

    def spawn(self, name, program, *args, device=DEVICE):
        return Process(name, [BIN / program, *args, *(["--device", device] if device != "host" else [])],
                       f"{self.logs}/{name}.log")

    @property
    def processes(self):
        return self.stages + [p for group in self.groups for p in group]

    def request(self, method, path, body=None, timeout=120, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def json(self, path, body=None, timeout=120, status=200):
        got, text = self.request("POST" if body is not None else "GET", path, body, timeout)
        assert got == status, f"{path}: {got} {text}"
        return json.loads(text)

    def health(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.request("GET", "/health", timeout=5)
        return 0, ""

    def wait_healthy(self, seconds=60, status=200):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.health()[0] == status:
                return
            ended = [p.name for p in self.processes if not p.alive()]
            if len(ended) == len(self.processes):
                raise AssertionError(f"every process has ended\n{self.tails()}")
            time.sleep(0.05)
        raise AssertionError(f"/health is {self.health()} after {seconds} s\n{self.tails()}")

    def metrics(self):
        """Every sample of /metrics by its full name with labels."""
        out = {}
        for line in self.request("GET", "/metrics")[1].splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                out[name] = float(value)
        return out

    def tails(self, lines=8):
        return "\n".join(f"--- {p.name} {'alive' if p.alive() else p.popen.returncode}\n"
                         + "\n".join(p.text().splitlines()[-lines:]) for p in self.processes)

    def restart(self, rank, group=0):
        """Starts a rank that has ended again; on a GPU the others of its group, which end for want of it, too."""
        members = [rank] if DEVICE == "host" else self.groups[group]
        for p in members:
            p.wait(40)
        for p in members:
            p.start()

    def stop(self):
        for p in self.processes:
            if p.alive():
                p.kill(signal.SIGTERM)
        end = time.monotonic() + 15
        for p in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(max(0.1, end - time.monotonic()))
            if p.alive():
                p.kill()
                p.wait()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print(self.tails())
        self.stop()


class Serve(Cluster):
    """`kern serve`, one process, behind the same calls."""

    def __init__(self, config="k3-nano", flags=(), max_seqs=None, chunk=None, plain=False):
        self.checkpoint, self.folder = artifacts(config, 2 if config == "k3-mini" else 8, 1, max_seqs, chunk, plain)
        self.logs = tempfile.mkdtemp(prefix="kern-e2e-")
        self.port, = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.groups = []
        self.stages = [self.spawn("serve", "kern", "serve", self.folder / "one.json", "--weights", self.checkpoint,
                                  "--port", self.port, *flags)]
        self.wait_healthy()
