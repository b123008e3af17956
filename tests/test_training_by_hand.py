"""One small mixture of experts under every kind of parallelism at once, each number of the estimate written out by hand."""

import pytest

from scaling_lib import hardware
from scaling_lib.hardware import slice_of
from scaling_lib.training import Plan, estimate
from scaling_lib.training.step import INSIDE, OUTSIDE
from scaling_lib.training.wires import placements, wires
from scaling_lib.transformer import Experts, Transformer

# Layers 1, 3, 5, 7 are dense; 0, 2, 4, 6, counted from 1 the even ones, have experts.
MODEL = Transformer(
    n_layers=8, d_model=512, n_heads=8, n_kv_heads=4, d_ff=1024, vocab_size=3072, name="tiny",
    experts=Experts(n_experts=8, top_k=2, d_ff=256, every=2),
)  # fmt: skip
T, V, D = 512, 3072, 512
SLICE = slice_of("v5p:4x4x4")
PLAN = Plan(  # two ways on every axis; 8 replicas of 4 microbatches of 3 sequences
    tensor=2, context=2, expert=2, fsdp=2, data=2, pipeline=2, microbatches=4, schedule="interleaved", virtual_stages=2,
    remat="full", gradients="f32", reduced="bf16",
)  # fmt: skip
BATCH = 8 * 4 * 3
HBM, PCIE, PEAK = SLICE.chip.hbm_bytes_per_s, SLICE.chip.pcie_bytes_per_s, SLICE.chip.flops_per_s()

ATTENTION, MLP, EXPERT = (
    D * 64 * (8 + 4 + 4 + 8),
    3 * D * 1024,
    3 * D * 256,
)  # numbers of a layer's, and of one expert's, matrices
DENSE = 8 * ATTENTION / 2 + 4 * MLP / 2 + 4 * D * 8 + 8 * 2 * D  # on a device, of 8 layers; routers and norms are whole
EXPERTS = 4 * 8 * EXPERT / 2 / 2
TABLE = V * D / 2
WIDEST = D * 1024 / 2  # a dense matrix on a device; four of eight experts' come to as many
KEPT = D * 2 / 2  # bytes a token and layer: the input, in parts
HERE = 3 * T / 2  # tokens of a micro-batch on a device of the context axis


def priced(**changes):
    return estimate(MODEL, SLICE, PLAN.but(**changes), BATCH, T=T)


def test_memory_of_both_stages():
    step = priced().step
    for memory, table, in_flight in ((step.first, TABLE, 2.5), (step.last, TABLE + D, 1.5)):
        held = (DENSE / 2 + table) / 8 + EXPERTS / 2 / 4  # dense weights over 2 · 2 · 2, experts over context and fsdp
        assert memory.weights == held * 2
        assert memory.gradients == held * 4
        assert memory.optimizer == held * 12
        head_inputs = 2 * D * 2 / 2 * (memory is step.last)
        assert memory.activations == pytest.approx(HERE * (KEPT * 4 * in_flight + head_inputs))
    assert (step.first.logits, step.first.head) == (0, 0)
    assert step.last.logits == HERE * V * (4 + 2) / 2
    assert (step.first.waiting, step.last.waiting) == (0, HERE * V * 4 / 2)
    assert step.last.head == (TABLE + D) * 2
    assert step.last.accumulates
    heads = D + 256 + 256 + D  # query, key, value, context
    both = 3 * D / 2 * 2 + heads / 2 * 2 + 8 * 4 / 2  # bytes a token; norms and attention's result in parts; normalizers
    dense = 3 * 1024 / 2 * 2
    routed = 8 / 2 * 2 + 2 * D / 2 * 2 + 3 * 2 * 256 / 2 * 2 + 2 * D / 2 * 2  # router, inputs, three hidden, results
    assert step.last.working == pytest.approx(HERE * (both + (dense + routed) / 2))
    layer, keys = DENSE / 8 + EXPERTS / 4, 2 * (HERE * 2 * 2 * 64 * 2)  # two blocks of two heads' keys and values
    assert step.last.buffers == pytest.approx(layer * 2 + WIDEST * 2 + keys + 3 * HERE * D * 2)


def test_the_peak_is_the_larger_of_two_moments():
    m = priced().step.last
    stays = m.weights + m.optimizer + m.activations + m.gradients  # of earlier microbatches too
    assert m.total == pytest.approx(stays + max(m.logits + m.head, m.working + m.buffers))
    m = priced(loss_chunks=16).step.last
    assert m.total == pytest.approx(stays + m.working + m.buffers)
    alone = estimate(MODEL, "v5p:2x2x1", Plan(fsdp=4), 4, T=T).step
    m = alone.last
    assert not m.accumulates
    assert m.total == m.weights + m.optimizer + m.activations + max(m.logits + m.head, m.gradients + m.working + m.buffers)
    assert alone.memory_bytes == m.total
    both = priced().step
    assert both.memory_bytes == max(both.first.total, both.last.total) > min(both.first.total, both.last.total)


def test_where_there_is_room_logits_wait_for_the_gradient_of_the_head():
    m = estimate(MODEL, "v5p:2x2x1", Plan(fsdp=4), 4, T=T).memory
    stays = m.weights + m.optimizer + m.activations
    ends = m.gradients + m.working + m.buffers
    roomy = stays + max(m.logits + m.head, ends + m.waiting)
    assert m.waiting == T * V * 4
    assert m.scheduled(2 * roomy) == roomy > m.total
    assert m.scheduled((m.total + roomy) / 2) == (m.total + roomy) / 2
    assert m.scheduled(m.total / 2) == m.total
    chunks = estimate(MODEL, "v5p:2x2x1", Plan(fsdp=4, loss_chunks=2), 4, T=T)
    assert chunks.memory.waiting == 0
    assert chunks.scheduled_bytes == chunks.memory.total


def test_memory_by_zero_stage_and_without_parts():
    layer, keys = DENSE / 8 + EXPERTS / 4, 2 * (HERE * 2 * 2 * 64 * 2)
    streams = 3 * HERE * D * 2
    assert priced(zero=2).step.last.buffers == pytest.approx(WIDEST * 2 + keys + streams)
    assert priced(zero=1).step.last.buffers == pytest.approx(keys + streams)
    wide = {"weights": "f32", "gradients": "f32", "master": None}  # all weights of the stage's layers once more, in bf16
    cast = 2 * (DENSE / 2 / 8 + EXPERTS / 2 / 4)
    assert priced(**wide).step.last.buffers == pytest.approx(layer * 2 + WIDEST * 2 + keys + streams + cast)
    assert priced(**wide, zero=1).step.last.buffers == pytest.approx(keys + streams + 2 * (DENSE + EXPERTS) / 2)
    assert priced(zero=2).step.last.head == 0
    assert priced(zero=1, sequence_parallel=False).step.last.buffers == pytest.approx(keys)
    four = priced(context=4, data=1, context_by="gather", zero=1, sequence_parallel=False)  # six sequences, all of their keys
    assert four.step.last.buffers == pytest.approx(6 * T * 2 * 2 * 64 * 2)
    offloaded = priced(offload="activations").step.first
    assert offloaded.activations == pytest.approx(HERE * KEPT * 2)  # of two layers of one micro-batch


def rows(**changes):
    return {(r.what, r.kind): (r.array_bytes, r.count) for r in priced(**changes).collectives}


def test_every_collective():
    layer, experts, head = DENSE / 8, EXPERTS / 4, TABLE + D
    stream = HERE * D * 2
    assert rows() == {
        ("layers: weights, forward", "all-gather"): (layer * 2, 4 * 4),
        ("layers: weights, backward", "all-gather"): (layer * 2, 4 * 4),
        ("layers: gradients", "reduce-scatter"): (layer * 2, 4 * 4),
        ("layers: gradients", "all-reduce"): (layer / 8 * 2, 4),
        ("experts: weights, forward", "all-gather"): (experts * 2, 2 * 4),
        ("experts: weights, backward", "all-gather"): (experts * 2, 2 * 4),
        ("experts: gradients", "reduce-scatter"): (experts * 2, 2 * 4),
        ("experts: gradients", "all-reduce"): (experts / 4 * 2, 2),
        ("head: weights, forward", "all-gather"): (head * 2, 4),
        ("head: gradients", "reduce-scatter"): (head * 2, 4),
        ("head: gradients", "all-reduce"): (head / 8 * 2, 1),
        # Blocks of a stage: 4 of attention, 2 dense, and 2 with two experts a token, makes 10. Forward and backward, and what
        # remat runs again; of the head one pair, and its input once more.
        ("activations: inputs", "all-gather"): (stream, (2 * 10 + 10 + 2) * 4),
        ("activations: results", "reduce-scatter"): (stream, (2 * 10 + 10 + 1) * 4),
        ("keys and values", "permute"): (HERE * 2 * 2 * 64 * 2, 4 * 1 * 4 * 4),  # there, back, gradients, again
        ("tokens", "all-to-all"): (HERE / 2 * 2 * D * 2, 6 * 2 * 4),
        ("activations and gradients", "permute"): (HERE / 2 * D * 2, 2 * 4 * 2),
    }


def test_collectives_without_remat_and_sequence_parallelism():
    found = rows(remat="none", sequence_parallel=False)
    stream = HERE * D * 2
    assert found["activations: results", "all-reduce"] == (stream, (2 * 10 + 1) * 4)
    assert ("activations: inputs", "all-gather") not in found
    assert found["keys and values", "permute"][1] == 3 * 1 * 4 * 4
    assert found["tokens", "all-to-all"] == (HERE * 2 * D * 2, 4 * 2 * 4)
    assert found["activations and gradients", "permute"][0] == stream


@pytest.mark.parametrize(("zero", "rounds"), [(1, 1), (2, 4)])
def test_collectives_where_weights_are_whole(zero, rounds):
    found = rows(zero=zero, weights="f32")
    layer = DENSE / 8
    assert found["layers: gradients", "reduce-scatter"] == (layer * 2, 4 * rounds)
    assert found["layers: after the update", "all-gather"] == (layer * 4, 4)
    assert ("layers: weights, forward", "all-gather") not in found


def test_parts_of_the_time():
    result = priced()
    step, parts = result.step, result.step.parts_s
    tokens = 12 * T
    matrices = 2 * (8 * ATTENTION + 4 * MLP + 4 * D * 8 + 4 * 2 * EXPERT) * 4  # a token; forward, backward twice, again
    pairs = T * (T + 1) / 2
    attention = 2 * 8 * 64 * pairs * 8 * ((3 + 2) + (3 + 1))  # scores once more, in the kernel
    head = 2 * V * D * 3
    flops = (tokens * (matrices / 2 + head) + 12 * attention / 2) / (2 * 2)
    streamed = 3 * 4 * ((DENSE + EXPERTS) / 2 + TABLE + D) * 2 / HBM
    assert step.math_s == pytest.approx(flops / PEAK)
    assert priced_at(efficiency=0.5).step.math_s == pytest.approx(2 * flops / PEAK)
    assert priced_at(hbm_bytes_per_s=1e9).step.math_s == pytest.approx(streamed * HBM / 1e9)
    wide = 8 * D * 8 / 2 + (3 * (4 * 1024 + 4 * 2 * 256) + 2 * (8 + 4) * 64 * 8) / 2
    assert parts["elementwise"] == pytest.approx(wide * 2 * 4 * tokens / 2 / 2 / HBM)
    updated = (DENSE / 2 + TABLE + D) / 8 + EXPERTS / 2 / 4
    assert step.optimizer_s == pytest.approx(updated * (4 + 2 * 12 + 2) / HBM)
    assert step.bubble == pytest.approx(1 / 8)
    assert priced(offload="optimizer").step.parts_s["offload"] == pytest.approx(2 * updated * 12 / PCIE)
    moved = 2 * KEPT * 8 / 2 * tokens / 2
    assert priced(offload="activations").step.parts_s["offload"] == pytest.approx(moved / PCIE)


def slice_with(**figures):
    return hardware.Slice(SLICE.chip.but(**figures), SLICE.shape)


def priced_at(efficiency=1.0, **figures):
    return estimate(MODEL, slice_with(**figures), PLAN, BATCH, T=T, efficiency=efficiency)


def test_the_step_is_its_parts():
    result = priced()
    step, parts = result.step, result.step.parts_s
    inside, outside = sum(parts[name] for name in INSIDE), sum(parts[name] for name in OUTSIDE)
    assert result.upper_s == pytest.approx((step.math_s + inside) * 9 / 8 + outside + step.optimizer_s)
    longest = max(step.math_s, *(parts[name] for name in INSIDE))
    floor = max(longest * 9 / 8, step.links_s, *(parts[name] for name in OUTSIDE))
    assert result.lower_s == pytest.approx(floor + step.optimizer_s)
    for part in ("fsdp", "data", "tensor", "context", "expert", "pipeline"):
        mine = [row for row in result.collectives if row.part == part]
        assert parts[part] == pytest.approx(sum(row.near_s for row in mine))
        assert parts[f"{part}.dcn"] == 0
    shown = estimate(MODEL, SLICE, result.plan, BATCH, T=T, overlap={"tensor": 1, "elementwise": 1, "data": 0.5})
    exposed = (step.math_s + parts["tensor"] + parts["elementwise"]) * 9 / 8 + parts["data"] / 2
    assert shown.seconds == pytest.approx(max(exposed, step.links_s) + step.optimizer_s)


def test_links_carry_all_that_lies_on_them():
    placement = {"tensor": {0: 2}, "expert": {0: 2}, "context": {1: 2}, "fsdp": {1: 2}, "data": {2: 2}, "pipeline": {2: 2}}
    result = priced(placement=placement)
    near = {}
    for row in result.collectives:
        near[row.group] = near.get(row.group, 0) + row.near_s
    on = {0: ("tensor", "expert", "shard"), 1: ("context", "expert_shard", "shard"), 2: ("data", "pipeline")}
    assert result.step.links_s == pytest.approx(max(sum(near[group] for group in groups) for groups in on.values()))


def test_a_step_over_dcn_and_its_latency():
    slice = slice_of("v5p:4x4x4", count=2)
    placement = {
        "tensor": {0: 2}, "expert": {0: 2}, "context": {1: 2}, "fsdp": {1: 2}, "data": {2: 2, "dcn": 2}, "pipeline": {2: 2},
    }  # fmt: skip
    plan = PLAN.but(data=4, placement=placement)
    plain, late = (estimate(MODEL, slice, plan, 2 * BATCH, T=T, start_s=s) for s in (0, 1e-5))
    data = [row for row in plain.collectives if row.part == "data"]
    assert plain.step.parts_s["data.dcn"] == pytest.approx(sum(row.far_s for row in data))
    for row in data:  # near ways leave each device half, of which the other slice has half
        assert row.far_s == pytest.approx(2 * row.array_bytes * row.count / 2 / 2 / slice.chip.dcn_bytes_per_s)
    assert late.step.parts_s["data.dcn"] == plain.step.parts_s["data.dcn"]
    for part in ("data", "tensor", "pipeline"):
        count = sum(row.count for row in plain.collectives if row.part == part)
        assert late.step.parts_s[part] == pytest.approx(plain.step.parts_s[part] + count * 1e-5)


def test_a_tied_head_is_held_read_and_updated_on_both_ends():
    tied = MODEL.but(tied_embeddings=True)
    result = estimate(tied, slice_with(hbm_bytes_per_s=1e9), PLAN, BATCH, T=T)
    step = result.step
    assert step.last.weights == pytest.approx(2 * ((DENSE / 2 + TABLE + D) / 8 + EXPERTS / 2 / 4))
    assert step.math_s == pytest.approx(3 * 4 * ((DENSE + EXPERTS) / 2 + TABLE + D) * 2 / 1e9)
    updated = (DENSE / 2 + TABLE + D) / 8 + EXPERTS / 2 / 4
    assert step.optimizer_s == pytest.approx(updated * (4 + 2 * 12 + 2) / 1e9)
    alone = estimate(tied, "v5p:2x2x1", Plan(data=4, zero=0), 4, T=T)
    (head,) = [row for row in alone.collectives if row.what == "head: gradients"]
    assert head.array_bytes == 2 * (2 * TABLE + D)
    assert not [row for row in alone.collectives if row.what.startswith("embedding")]


def test_shared_experts_and_parallel_blocks():
    shared = MODEL.but(experts=Experts(n_experts=8, top_k=2, d_ff=256, every=2, n_shared=3))
    counts = [
        sum(r.count for r in estimate(model, SLICE, PLAN.but(remat="none"), BATCH, T=T).collectives if r.part == "tensor")
        for model in (MODEL, shared, MODEL.but(parallel=True))
    ]
    assert counts[1] - counts[0] == 2 * 4 * (2 * 2 + 1)  # two layers of a stage: two pairs and an input each
    assert counts[0] - counts[2] == 4 * 4 * (2 * 2 + 1)
    extra = [estimate(model, SLICE, PLAN.but(remat="none"), BATCH, T=T).step.parts_s["elementwise"] for model in (MODEL, shared)]
    assert extra[1] - extra[0] == pytest.approx(3 * (4 * 3 * 256) / 2 * 2 * 3 * 12 * T / 2 / 2 / HBM)


def test_rates_of_half_a_chip():
    """A device of TPU7x computes, reads and sends half as fast as the chip; the pair together gathers over all links."""
    slice = slice_of("tpu7x:4x4x4", count=2)
    apart = {"data": {"chip": 2}, "fsdp": {0: 4, 1: 4, 2: 4, "dcn": 2}}
    joined = {"fsdp": {"chip": 2, 0: 4, 1: 4, 2: 4, "dcn": 2}}
    one, two = (wires(slice, placed, "shard", start_s=1.0) for placed in (apart, joined))
    assert (one.ways, two.ways) == (128, 256)
    assert one.gather_s == pytest.approx(2 * two.gather_s)
    assert one.far_gather_s == pytest.approx(2 * two.far_gather_s)
    assert wires(slice, apart, "data", start_s=1.0).start_s == 1
    assert wires(slice, apart, "tensor", start_s=1.0).start_s == 0
    result = estimate(MODEL, slice, Plan(fsdp=256, placement=joined), 256, T=T)
    tokens, chip = T, slice.chip
    wide = 8 * D * 8 + (3 * (4 * 1024 + 4 * 2 * 256) + 2 * (8 + 4) * 64 * 8)
    assert result.step.parts_s["elementwise"] == pytest.approx(wide * 2 * 3 * tokens / (chip.hbm_bytes_per_s / 2))
    flops = result.facts.matmul_flops + result.facts.attention_flops + result.facts.head_flops
    fast = hardware.Slice(chip.but(hbm_bytes_per_s=1e15), slice.shape, 2)
    assert estimate(MODEL, fast, Plan(fsdp=256), 256, T=T).step.math_s == pytest.approx(flops / (chip.flops_per_s() / 2))


def test_two_ways_have_a_place():
    (found,) = (placements({"tensor": 2, "fsdp": 2}, slice_of("h100:2x2")),)
    assert [dict(one) for one in found] == [
        {"tensor": {"node": 2}, "fsdp": {"dcn": 2}},
        {"tensor": {"dcn": 2}, "fsdp": {"node": 2}},
    ]


def test_logits_set_the_peak_of_a_large_vocabulary():
    model = MODEL.but(vocab_size=300_000)
    for plan in (Plan(fsdp=2), Plan(fsdp=2, microbatches=2)):
        m = estimate(model, "h100:2x1", plan, 4, T=T).memory
        stays = m.weights + m.optimizer + m.activations + (m.gradients if plan.microbatches > 1 else 0)
        assert m.total == pytest.approx(stays + m.logits + m.head)
        assert m.logits + m.head > m.gradients + m.working + m.buffers
        assert m.head == (300_000 * D + D) * 2


def test_two_ways_share_and_gather():
    m = estimate(MODEL, "h100:2x1", Plan(fsdp=2), 2, T=T).memory
    dense = 8 * ATTENTION + 4 * MLP + 4 * D * 8 + 8 * 2 * D
    assert m.buffers == pytest.approx((dense / 8 + 8 * EXPERT) * 2 + 8 * D * 256 * 2)


def test_zero_1_shares_the_update():
    whole, shared = (estimate(MODEL, "h100:8x1", plan, 8, T=T).step for plan in (Plan(data=8, zero=0), Plan(fsdp=8, zero=1)))
    assert shared.optimizer_s == pytest.approx(whole.optimizer_s / 8)


def test_a_device_has_its_share_of_the_way_to_the_host():
    chip = hardware.chip("tpu7x").but(pcie_bytes_per_s=1e9)  # no source states it
    step = estimate(MODEL, hardware.Slice(chip, (2, 2, 1)), Plan(fsdp=8, offload="optimizer"), 8, T=T).step
    held = (8 * ATTENTION + 4 * MLP + 4 * D * 8 + 8 * 2 * D + 2 * V * D + D + 4 * 8 * EXPERT) / 8
    assert step.parts_s["offload"] == pytest.approx(2 * held * 12 / 0.5e9)
