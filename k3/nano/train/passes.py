"""One pass: a batch's gradients added up; on a GPU as a recorded graph, one for each kind of batch."""
import numpy as np
import torch

from batches import LIMITS, READ, SAID
from model import Rows

READ_WEIGHT = 0.1  # of what is read, beside what is said


def weights(said, passes):
    """Of each token's prediction of the next: what is said weighs 1 in all, what is read READ_WEIGHT."""
    out = np.zeros(len(said), np.float32)
    after = said[1:]
    for kind, share in ((SAID, 1.0), (READ, READ_WEIGHT)):
        out[:-1][after == kind] = share / max(1, int((after == kind).sum())) / passes
    return out


def next_ids(ids, lengths):
    """The id behind each; a sequence's last predicts nothing."""
    after = np.zeros(len(ids), np.int64)
    after[:-1] = ids[1:]
    return after


def no_first(said, lengths):
    """`said` without the first token of each sequence, which nothing predicts."""
    out = said.copy()
    out[np.cumsum([0, *lengths[:-1]])] = 2
    return out


class Passes:
    def __init__(self, model, tokens, device):
        self.model, self.device, self.on_gpu = model, device, device.startswith("cuda")
        self.tokens, self.graphs, self.pool = tokens, {}, None
        self.load = torch.zeros(len(self.moes()), model.config.experts, device=device)

    def moes(self):
        return [n[:-len("gate/weight")].replace("/", ".") for n in self.model.tensors
                if n.endswith("block_sparse_moe/gate/weight")]

    def rows(self, kind, lengths, device):
        """As many sequences as the kind may have, empty ones at the end."""
        longest, most = LIMITS[kind]
        if len(lengths) > most or max(lengths) > longest:
            raise ValueError(f"{len(lengths)} sequences of at most {max(lengths)} tokens in a pass of {kind}")
        return Rows([*lengths, *[0] * (most - len(lengths))], device, longest)

    def given(self, batch, passes):
        kind, ids, said, lengths, _ = batch
        device = "cpu" if self.on_gpu else self.device
        parts = (ids.astype(np.int64), next_ids(ids, lengths), weights(no_first(said, lengths), passes))
        parts, rows = [torch.from_numpy(x) for x in parts], self.rows(kind, lengths, device)
        if self.on_gpu:
            parts = [x.pin_memory() for x in parts]
            rows.pin()
        return parts, rows

    def work(self, ids, target, weight, rows):
        total, losses, right = self.model.losses(ids, rows, target, weight)
        total.backward()
        self.load += torch.stack([self.model.load[moe] for moe in self.moes()])
        return losses, right

    def record(self, kind, parts, rows):
        """Runs a kind's pass until all is compiled, then records it."""
        parts = [x.to(self.device) for x in parts]
        rows = self.rows(kind, rows.lengths, self.device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.work(*parts, rows)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            out = self.work(*parts, rows)
        self.pool = self.pool or graph.pool()
        self.graphs[kind] = (graph, parts, rows, out)

    def run(self, batch, passes=1):
        """(what each token lost, whether it was right), still on their way on a GPU."""
        parts, rows = self.given(batch, passes)
        if not self.on_gpu:
            return self.work(*parts, rows)
        graph, fixed, fixed_rows, out = self.graphs[batch[0]]
        for x, y in zip(fixed, parts):
            x.copy_(y, non_blocking=True)
        fixed_rows.take(rows)
        graph.replay()
        return out


def loss_said(batch, losses):
    """Mean loss of what is said."""
    _, _, said, lengths, _ = batch
    mask = torch.from_numpy(no_first(said, lengths)[1:] == SAID)
    return losses[:-1].float().cpu()[mask].mean().item()


def answers(batch, right):
    """(skill, whether every token of an answer would be the most likely one) of each answer that
    can be known: a story cannot."""
    kind, _, said, lengths, skills = batch
    right, at, out = right.cpu().numpy(), 0, []
    for length, skill in zip(lengths, skills):
        inside = np.flatnonzero(said[at:at + length] == SAID) + at
        name = f"{skill}-{kind}" if skill == "recall" else skill
        for run in np.split(inside, np.flatnonzero(np.diff(inside) > 1) + 1):
            if len(run) and skill != "story":
                out.append((name, bool(right[run - 1].all())))
        at += length
    return out
