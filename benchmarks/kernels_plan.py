"""Out of manifests: every distinct launch of a program at one shape, with operands that mean something,
as launch-bench reads it. What is measured is what programs launch: geometry, constants and buffers
come from the manifest and from nowhere else."""
import dataclasses
import math
import random
import struct

SIZES = {"bf16": 2, "f16": 2, "f32": 4, "i32": 4, "u32": 4, "i64": 8, "u64": 8, "u8": 1, "i8": 1, "fp8e4m3": 1, "fp8e8m0": 1}
PAGE = 64
OUTGROWS_CACHE = 200e6  # bytes: four times the L2 of an H200
SETS_MAX, BYTES_OF_SETS_MAX = 32, 40e9
SHARED_FROM = 100e6  # a weight of more is one for all sets: the rows choose other parts of it
SEED = 7


@dataclasses.dataclass
class Case:
    """A program at one shape."""
    name: str
    manifest: dict
    program: str
    tokens: int
    seqs: int
    context: int

    @property
    def vars(self):
        return {"tokens": self.tokens, "seqs": self.seqs}

    @property
    def ranks(self):
        return next(iter(self.manifest.get("topology", {}).get("groups", {"": 1}).values()))


def value_of(expr, values):
    if isinstance(expr, str):
        return values[expr]
    if isinstance(expr, int):
        return expr
    (name, parts), = expr.items()
    parts = [value_of(part, values) for part in parts]
    if name == "add":
        return sum(parts)
    if name == "mul":
        return math.prod(parts)
    if name == "ceil_div":
        return -(-parts[0] // parts[1])
    if name in ("min", "max"):
        return {"min": min, "max": max}[name](parts)
    raise ValueError(f"an expression `{name}`: expected add, mul, ceil_div, min or max")


@dataclasses.dataclass
class Buffer:
    """A buffer that a launch receives, from `offset` bytes on."""
    name: str
    dtype: str
    bytes: int
    kind: str
    io: str = ""
    offset: int = 0
    of: str = ""  # a peer table: whose addresses


@dataclasses.dataclass
class Launch:
    """One launch at one case: its arguments are Buffers, numbers, or words for launch-bench."""
    case: Case
    op: str
    number: int  # among the op's launches
    module: str
    entry: str
    grid: list
    block: list
    cluster: list
    shared: int
    args: list
    words: list  # the same arguments for launch-bench
    earlier: list = dataclasses.field(default_factory=list)  # of the same op: they make what it reads
    experts: object = None

    @property
    def buffers(self):
        return [arg for arg in self.args if isinstance(arg, Buffer)]

    @property
    def key(self):
        """What tells it from others of its case."""
        scalars = tuple(arg for arg in self.args if not isinstance(arg, Buffer))
        return (self.module, self.entry, *self.grid, self.shared, scalars, tuple((b.bytes, b.offset > 0) for b in self.buffers))


class Experts:
    """Which experts the rows choose, evenly: some variants, so that sets of operands differ."""

    def __init__(self, rows, top_k, experts, ranks):
        rng = random.Random(SEED)
        self.variants = 1 if rows > 1000 else 8
        # A row that reaches nobody's expert of this rank would time nothing: the first choice is one of ours.
        self.ids = [[sorted(rng.sample(range(experts * ranks), top_k)) for _ in range(rows)] for _ in range(self.variants)]
        for rows_of in self.ids:
            if not any(e < experts for ids in rows_of for e in ids):
                rows_of[0] = sorted([rng.randrange(experts), *rows_of[0][1:]])
        ours = [[e for ids in rows_of for e in ids if e < experts] for rows_of in self.ids]
        self.picks = sum(map(len, ours)) / self.variants
        self.touched = sum(len(set(one)) for one in ours) / self.variants


class Reader:
    """The launches of one case."""

    def __init__(self, case):
        self.case = case
        self.manifest = case.manifest
        top = next((call for call in case.manifest["programs"][case.program]["calls"] if call["op"] == "routed_experts"), None)
        self.experts = None
        if top:
            numbers = [arg.get("i32") for arg in top["args"]]
            self.experts = Experts(case.tokens, numbers[11], numbers[10], case.ranks)

    def launches(self):
        seen = {}
        for call in self.manifest["programs"][self.case.program]["calls"]:
            for launch in self.of_call(call):
                seen.setdefault(launch.key, launch)
        return list(seen.values())

    def of_call(self, call):
        op = self.manifest["ops"][call["op"]]
        earlier = []
        for number, launch in enumerate(op["impl"]["launches"]):
            when = launch.get("when")
            if when and not when.get("min", 0) <= self.case.vars[when["var"]] <= when.get("max", 1 << 62):
                continue
            one = self.resolve(call, op, number, launch, list(earlier))
            earlier.append(one)
            yield one

    def resolve(self, call, op, number, launch, earlier):
        types = launch.get("params", op["params"])
        given = launch.get("args") or [{"param": i} for i in range(len(op["params"]))]
        args, words = [], []
        for form, arg in zip(types, given):
            value, word = self.argument(form, arg, call, op)
            args.append(value)
            words.append(word)
        three = lambda name: [value_of(part, self.case.vars) for part in launch.get(name, [1, 1, 1])]
        return Launch(self.case, call["op"], number, launch.get("module", ""), launch["entry"], three("grid"), three("block"),
                      three("cluster"), value_of(launch.get("shared_mem", 0), self.case.vars), args, words, earlier, self.experts)

    def argument(self, form, arg, call, op):
        if "param" in arg:
            inner = call["args"][arg["param"]]
            value, word = self.argument(op["params"][arg["param"]], inner, call, op)
            if isinstance(value, Buffer):
                value = dataclasses.replace(value, io=form.split()[0])
            return value, word
        if "scratch" in arg:
            made = op["impl"]["scratch"][arg["scratch"]]
            return self.bound(Buffer("scratch." + arg["scratch"], made["dtype"], self.size(made), "scratch", form.split()[0]))
        if "pack" in arg:
            (field,) = arg["pack"]["fields"]
            tile = field["tensormap"]
            state, _ = self.argument("in state", {"param": tile["param"]}, call, op)
            lists = ":".join(",".join(map(str, tile[name])) for name in ("dims", "strides", "box"))
            return 0, f"t:{state.name}:{tile['dtype']}:{lists}:{tile.get('swizzle', 0)}:{tile.get('l2_promotion', 0)}"
        if "buf" in arg:
            made = self.manifest["buffers"][arg["buf"]]
            return self.bound(Buffer(arg["buf"], made["dtype"], self.size(made), made["kind"], form.split()[0],
                                     arg.get("offset", 0), made.get("of", "")))
        if "state" in arg:
            return self.bound(self.state(arg["state"], form.split()[0]))
        if "rank" in arg:
            return 0, "r" if call["op"] in ("allreduce", "alltoall", "allgather") else "i:0"
        letter = {"i32": "i", "i64": "l", "f32": "f"}[form]
        (_, said), = arg.items()
        value = value_of(said, self.case.vars) if "var" in arg or "expr" in arg else said
        return value, f"{letter}:{value}"

    def bound(self, buffer):
        return buffer, f"p:{buffer.of}" if buffer.of else f"b:{buffer.name}:{buffer.offset}"

    def size(self, made):
        return math.prod(value_of(extent, self.case.vars) for extent in made["shape"]) * SIZES[made["dtype"]]

    def state(self, name, io):
        made = self.manifest["states"][name]
        if "bytes_per_token" in made:
            pages = self.case.seqs * self.pages_each() + 1
            return Buffer(name, "bf16", pages * PAGE * made["bytes_per_token"], "state", io)
        # A line a sequence and one for its snapshot; line 0 is nobody's.
        return Buffer(name, "f32", (2 * self.case.seqs + 1) * made["bytes_per_seq"], "state", io)

    def held(self):
        """Positions of a sequence that a rank holds."""
        return -(-self.case.context // self.case.ranks)

    def pages_each(self):
        return -(-self.held() // PAGE)

    # ---- what stands in a buffer ----

    def fill(self, buffer, folder, vocab):
        """A word for launch-bench; tables of integers become files."""
        case, name = self.case, buffer.name
        each = case.tokens // case.seqs
        count = buffer.bytes // SIZES[buffer.dtype]
        rng = random.Random(SEED)
        tables = {
            "cu_seqlens": lambda: [min(i * each, case.tokens) for i in range(count)],
            "seq_len": lambda: [case.context] * count,
            "lines": lambda: [1 + i for i in range(count)],
            "snapshot": lambda: [1 + case.seqs + i for i in range(count)],
            "token": lambda: [rng.randrange(vocab) for _ in range(count)],
            "source": lambda: [-1] * count,
            "pages": lambda: self.pages(count),
            "slot": lambda: self.slots(),
        }
        if name == "expert_ids":
            ids = [e for variant in self.experts.ids for row in variant for e in row]
            return self.file(folder, name, struct.pack(f"<{len(ids)}i", *ids), self.experts.variants)
        if buffer.dtype == "i32" and name in tables:
            values = tables[name]()
            return self.file(folder, name, struct.pack(f"<{len(values)}i", *values), 1)
        if name in ("top_p",):
            return self.file(folder, name, struct.pack(f"<{count}f", *[0.95] * count), 1)
        if name in ("temperature",):
            return self.file(folder, name, struct.pack(f"<{count}f", *[0.8] * count), 1)
        if name == "logits":
            return "f32:3"
        if name in ("min_p",) or buffer.kind == "carry" or buffer.dtype in ("i32", "i64", "u32", "u64"):
            return "zero"
        if buffer.dtype in ("bf16", "f32"):
            return buffer.dtype
        return "bytes:118:122" if buffer.dtype == "fp8e8m0" else "bytes:0:255"

    def pages(self, count):
        width, each = count // self.case.seqs, self.pages_each()
        table = [0] * count
        order = list(range(1, self.case.seqs * each + 1))
        random.Random(SEED).shuffle(order)
        for seq in range(self.case.seqs):
            table[seq * width:seq * width + each] = order[seq * each:(seq + 1) * each]
        return table

    def slots(self):
        """Where each row lies: as the table of pages has it."""
        case, each = self.case, self.case.tokens // self.case.seqs
        table = self.pages(case.seqs * self.pages_each())
        slots = []
        for seq in range(case.seqs):
            for position in range(case.context - each, case.context):
                row = position // case.ranks
                slots.append(table[seq * self.pages_each() + row // PAGE] * PAGE + row % PAGE)
        return slots

    @staticmethod
    def file(folder, name, data, variants):
        path = folder / f"{name}.{abs(hash(data)) % 10**12}.i32"
        path.write_bytes(data)
        return f"file:{path}:{variants}"


def sets_of(launch, touched):
    """As many operands as outgrow the cache, and as fit."""
    own = sum(b.bytes for b in {b.name: b for one in (*launch.earlier, launch) for b in one.buffers}.values() if not is_shared(b))
    wanted = min(int(OUTGROWS_CACHE / max(touched, 1)) + 2, SETS_MAX)
    return max(1, min(wanted, int(BYTES_OF_SETS_MAX / max(own, 1))))


def is_shared(buffer):
    return buffer.kind in ("carry", "peer") or (buffer.kind == "weight" and buffer.bytes > SHARED_FROM and buffer.dtype in ("u8", "fp8e8m0"))


def is_collective(launch):
    return any(buffer.of for buffer in launch.buffers)


def lines(reader, launch, row, touched, folder, vocab):
    """launch-bench's words for one row."""
    several = is_collective(launch)
    out = [f"row {row} {sets_of(launch, touched)} {launch.case.ranks if several else 1}"]
    buffers = {b.name: b for one in (*launch.earlier, launch) for b in one.buffers}
    for buffer in buffers.values():
        if not buffer.of:
            kind = "shared" if is_shared(buffer) else "own"
            out.append(f"buffer {buffer.name} {buffer.bytes} {kind} {reader.fill(buffer, folder, vocab)}")
    if launch.entry.startswith("extern:"):
        return out + [product_line(reader, launch), "end"]
    for word, one in (*(("prepare", each) for each in launch.earlier), ("launch", launch)):
        numbers = [*one.grid, *one.block, *one.cluster, one.shared]
        out.append(" ".join([word, one.module, one.entry, *map(str, numbers), *one.words]))
    return out + ["end"]


@dataclasses.dataclass
class Product:
    a: Buffer
    w: Buffer
    c: Buffer
    rows: int
    n: int
    k: int
    c_stride: int
    a_stride: int
    f32: bool
    adds: bool


def product_of(launch):
    a, w, c, rows, n, k, *strides = launch.args
    c_stride, a_stride = (strides + [n, k][len(strides):]) if len(strides) < 2 else strides
    return Product(a, w, c, rows, n, k, c_stride, a_stride, c.dtype == "f32", launch.entry.endswith("_acc"))


def product_line(reader, launch):
    p = product_of(launch)
    most = reader.manifest["vars"]["tokens" if p.rows == reader.case.tokens else "seqs"]["max"]
    places = [f"{b.name}:{b.offset}" for b in (p.a, p.w, p.c)]
    numbers = [p.n, p.k, p.a_stride, p.c_stride, int(p.f32), int(p.adds), p.rows, most]
    return " ".join(["product", *map(str, numbers), *places])
