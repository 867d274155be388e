"""What each kernel must move and multiply at least: bytes of its inputs read once and its outputs written
once, and operations of the matrix units. Where a buffer is read in part (a table, the pages of a
sequence, the experts that rows chose) the formula counts the part; otherwise its size counts."""
import kernels_plan

EXPERT_BYTES = 0.5 + 1 / 32  # of a weight: four bits, and a scale for 32


def sizes(launch):
    return sum(b.bytes * (2 if b.io == "inout" else 1) for b in launch.buffers if b.kind not in ("carry", "peer"))


def pairs(case, held):
    """Row and position, of the positions that a rank holds."""
    each = case.tokens // case.seqs
    return case.seqs * each * (case.context - (each - 1) / 2) * held / case.context


def attend(launch, held):
    heads, lora, rope = launch.args[6:9]
    rows = launch.case.tokens
    moved = launch.case.seqs * held * (lora + rope) * 2 + rows * heads * ((lora + rope) * 2 + (lora + 2) * 4)
    return moved, pairs(launch.case, held) * heads * 2 * (2 * lora + rope)


def join(launch, held):
    tiles = -(-held // 64)
    segments = -(-tiles // (4 * max(4, -(-tiles // 120))))
    heads, part = launch.args[4], launch.args[3].bytes
    return (part * (segments + 1) if segments > 1 else launch.case.tokens * 8), 0


def up(launch):
    width, inter, e = launch.args[9], launch.args[10], launch.experts
    moved = e.touched * 2 * width * inter * EXPERT_BYTES + launch.case.tokens * width * 2 + e.picks * inter * 2
    return moved, 4 * e.picks * width * inter


def down(launch):
    width, inter, e = launch.args[6], launch.args[7], launch.experts
    return e.touched * width * inter * EXPERT_BYTES + e.picks * (inter + width) * 2, 2 * e.picks * width * inter


def combine(launch):
    width, top_k, _, rows = launch.args[4:8]
    return launch.experts.picks * width * 2 + rows * top_k * 8 + rows * width * 4, 0


def plan(launch):
    top_k, rows, e = launch.args[7], launch.args[9], launch.experts
    return rows * top_k * 8 + e.picks * 4 + e.touched * 12, 0


def embed(launch):
    out = next(b for b in launch.buffers if b.io == "out")
    return 2 * out.bytes + 4 * launch.case.tokens, 0


def wide(launch, elements, more=0):
    """Rows of a wider row are read: bytes an element of the row's own width."""
    out = next(b for b in launch.buffers if b.io == "out")
    return out.bytes // 2 * elements + more, 0


def mix_last(launch):
    width, seqs, bank = launch.args[7:10]
    return seqs * width * 2 * (bank + 2) + 3 * width * 2, 0


def delta(launch):
    """heads, dim, rows and bytes of a line of state for the entries of KDA."""
    heads, dim = [arg for arg in launch.args if isinstance(arg, int) and not isinstance(arg, bool)][:2]
    return heads, dim, launch.case.tokens, heads * dim * dim * 4, 3 * 3 * heads * dim * 2


def chunk(launch):
    heads, dim, rows, _, _ = delta(launch)
    records = (rows // 16) * heads * (132 * dim + 1024)
    return rows * heads * dim * 8 + records, 2 * rows * heads * dim * 16 * 2


def scan(launch):
    heads, dim, rows, state, _ = delta(launch)
    records = (rows // 16) * heads * (132 * dim + 1024)
    flops = (rows // 16) * heads * 2 * (3 * 16 * dim * dim + 2 * 16 * 16 * dim)
    return records + rows * heads * dim * 4 + 3 * launch.case.seqs * state, flops


def prep(launch):
    heads, dim, rows, _, _ = delta(launch)
    return rows * heads * dim * (4 * 2 + 4 * 4), 0


def recurrence(launch):
    heads, dim, rows, state, _ = delta(launch)
    return rows * heads * dim * 5 * 4 + 2 * launch.case.seqs * state, 0


def windows(launch):
    heads, dim, _, _, lines = delta(launch)
    return launch.case.seqs * lines * (3 if launch.entry.endswith("snapshot") else 2), 0


def out(launch):
    heads, dim, rows, _, _ = delta(launch)
    return rows * heads * dim * (4 + 2 + 2), 0


def decode(launch):
    heads, dim, rows, state, lines = delta(launch)
    return launch.case.seqs * 2 * (state + lines) + rows * heads * dim * 6 * 2, 0


def mla_prep(launch):
    q_lora, lora, rope = launch.args[8:11]
    held = launch.case.tokens / launch.case.ranks
    return launch.case.tokens * q_lora * 4 + held * (lora + rope) * 4, 0


def absorb(launch):
    heads, nope, rope, _, lora, rows = launch.args[3:9]
    return heads * nope * lora * 2 + rows * heads * (nope + 2 * rope + lora) * 2, 2 * rows * heads * nope * lora


def merge(launch):
    heads, _, v, lora = launch.args[4:8]
    ranks, rows = launch.args[11:13]
    moved = heads * v * lora * 2 + rows * heads * (ranks * (lora + 2) * 4 + v * 4)
    return moved, 2 * rows * heads * v * lora


def collective(launch):
    """Of all ranks, since all of them run on one device: each part read once, each result written once."""
    count, own = launch.args[1 if "allreduce" in launch.entry else 2] * 4, launch.case.ranks
    each = {"kern_allreduce_f32": 2 * count, "kern_alltoall_f32": 2 * own * count, "kern_allgather_f32": (1 + own) * count}
    return own * each[launch.entry], 0


def product(launch):
    p = kernels_plan.product_of(launch)
    c = p.rows * p.n * (4 if p.f32 else 2) * (2 if p.adds else 1)
    return 2 * (p.rows * p.k + p.n * p.k) + c, 2 * p.rows * p.n * p.k


def work(reader, launch):
    """Bytes and operations."""
    held = reader.held()
    formulas = {
        "kern_embed": embed, "kern_embed_fed": embed, "kern_land_rms": lambda l: wide(l, 6),
        "kern_land_moe": lambda l: wide(l, 10), "kern_mix_rms_last": mix_last, "kern_moe_plan": plan,
        "kern_moe_up": up, "kern_moe_down": down, "kern_moe_combine": combine, "kern_kda_prep": prep,
        "kern_kda_recurrence": recurrence, "kern_kda_recurrence_snapshot": recurrence, "kern_kda_windows": windows,
        "kern_kda_windows_snapshot": windows, "kern_kda_out": out, "kern_kda_chunk": chunk,
        "kern_kda_scan_snapshot": scan, "kern_kda_decode": decode, "kern_mla_prep": mla_prep, "kern_mla_absorb": absorb,
        "kern_mla_attend": lambda l: attend(l, held), "kern_mla_attend_split": lambda l: attend(l, held),
        "kern_mla_attend_any": lambda l: attend(l, held), "kern_mla_attend_join": lambda l: join(l, held),
        "kern_mla_merge": merge, "kern_sample": lambda l: (l.args[0].bytes, 0), "kern_argmax": lambda l: (l.args[0].bytes, 0),
        "kern_allreduce_f32": collective, "kern_alltoall_f32": collective, "kern_allgather_f32": collective,
    }
    if launch.entry.startswith("extern:"):
        return product(launch)
    return formulas.get(launch.entry, lambda l: (sizes(l), 0))(launch)
