"""Collectives: closed forms by hand, simulations that move bytes link by link, published problems and measurements."""

import itertools
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_lib import catalog, collectives
from scaling_lib.collectives import (
    CollectiveCost,
    Group,
    across,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    over,
    permute,
    reduce_scatter,
    tpu7x_calibration,
)
from scaling_lib.hardware import chip, slice_of
from scaling_lib.torus import Torus

ALL = [all_gather, reduce_scatter, all_reduce, all_to_all, permute, broadcast, gather]
LINK = 3e10


def ring(n, **rest):
    return Group(sizes=(n,), wraps=(True,), link_bytes_per_s=LINK, **rest)


def line(n, **rest):
    return Group(sizes=(n,), wraps=(False,), link_bytes_per_s=LINK, **rest)


def switch(n, **rest):
    return Group(sizes=(n,), link_bytes_per_s=LINK, **rest)


one_axis = st.builds(
    lambda make, n: make(n),
    st.sampled_from([ring, line, switch, lambda n: ring(n, ways=1)]),
    st.integers(2, 12),
)


# Simulations: what crosses each link, one way, and who holds what in the end.


class Wires:
    """Members on a ring or a line; every byte that moves is counted on its link, and goes one link a step."""

    def __init__(self, group):
        (self.n,), (self.wrap,) = group.sizes, group.wraps
        self.load = defaultdict(float)

    def send(self, at, way, bytes):
        to = at + way
        assert self.wrap or 0 <= to < self.n, "a line has no link there"
        self.load[at, way] += bytes
        return to % self.n

    @property
    def busiest(self):
        return max(self.load.values())

    @property
    def sent_by_the_mean_member(self):
        return sum(self.load.values()) / self.n


def simulate_all_gather(array_bytes, group):
    """Every chip passes on what it received last; on a ring both ways, half of each part goes each way."""
    wires = Wires(group)
    n, both = wires.n, wires.wrap and group.ways == 2
    piece = array_bytes / n / (2 if both else 1)
    ways = (1,) if wires.wrap and not both else (1, -1)
    held = {i: {(i, way) for way in ways} if both else {i} for i in range(n)}
    for way in ways:
        moving = {i: i for i in range(n)}  # where each part is now: part -> chip
        for _ in range(n - 1):
            for part, at in list(moving.items()):
                if not wires.wrap and not 0 <= at + way < n:
                    del moving[part]
                    continue
                moving[part] = wires.send(at, way, piece)
                held[moving[part]].add((part, way) if both else part)
    assert all(len(parts) == n * (2 if both else 1) for parts in held.values())
    return wires


torus_axes = st.builds(lambda make, n: make(n), st.sampled_from([ring, line, lambda n: ring(n, ways=1)]), st.integers(2, 12))


@given(torus_axes, st.integers(1, 10**9))
def test_an_all_gather_moved_link_by_link_takes_the_bandwidth_term(group, array_bytes):
    wires, cost = simulate_all_gather(array_bytes, group), all_gather(array_bytes, group)
    assert cost.link_bytes == pytest.approx(wires.busiest)
    assert cost.sent_bytes == pytest.approx(wires.sent_by_the_mean_member)
    assert cost.bandwidth_s == pytest.approx(wires.busiest / LINK)


@given(st.integers(2, 9), st.data())
def test_a_reduce_scatter_one_way_around_adds_everything_and_loads_links_as_priced(n, data):
    numbers = data.draw(st.lists(st.lists(st.integers(-9, 9), min_size=n, max_size=n), min_size=n, max_size=n))
    group, bytes = ring(n, ways=1), 4
    wires = Wires(group)
    moving = {i: (i - 1) % n for i in range(n)}  # chip -> the part whose sum it is about to pass on
    sums = {i: numbers[i][moving[i]] for i in range(n)}
    for _ in range(n - 1):
        arrived = {wires.send(i, 1, bytes): (moving[i], sums[i]) for i in range(n)}
        moving = {i: part for i, (part, _) in arrived.items()}
        sums = {i: so_far + numbers[i][moving[i]] for i, (_, so_far) in arrived.items()}
    assert all(sums[i] == sum(row[moving[i]] for row in numbers) for i in range(n))
    assert sorted(moving.values()) == list(range(n))
    assert reduce_scatter(n * bytes, group).link_bytes == wires.busiest


def simulate_messages(group, messages):
    """Send each (from, to, bytes) by the shortest way; what is as far both ways goes half each way."""
    wires = Wires(group)
    n = wires.n
    for start, to, bytes in messages:
        ways = {1: (to - start) % n, -1: (start - to) % n} if wires.wrap else {(1 if to > start else -1): abs(to - start)}
        shortest = ways[1] if group.ways == 1 else min(ways.values())
        chosen = [1] if group.ways == 1 else [way for way, hops in ways.items() if hops == shortest]
        for way in chosen:
            at = start
            for _ in range(shortest):
                at = wires.send(at, way, bytes / len(chosen))
            assert at == to
    return wires


@given(torus_axes, st.integers(1, 10**9))
def test_an_all_to_all_moved_link_by_link_loads_the_links_as_priced(group, array_bytes):
    n = group.members
    pairs = itertools.permutations(range(n), 2)
    wires, cost = simulate_messages(group, [(a, b, array_bytes / n) for a, b in pairs]), all_to_all(array_bytes, group)
    assert cost.link_bytes == pytest.approx(wires.busiest)
    assert cost.sent_bytes == pytest.approx(wires.sent_by_the_mean_member)


@given(torus_axes, st.integers(-30, 30))
def test_a_permute_moved_link_by_link_loads_the_links_as_priced(group, shift):
    n = group.members
    if shift % n == 0:
        return
    moves = [(i, (i + shift) % n, 1.0) for i in range(n)]
    wires, cost = simulate_messages(group, moves), permute(1.0, group, shift=shift)
    halves = 2 if group.wraps[0] and group.ways == 2 and 2 * (shift % n) == n else 1  # the price takes one way for all
    assert cost.link_bytes == pytest.approx(halves * wires.busiest)
    assert cost.sent_bytes == pytest.approx(wires.sent_by_the_mean_member)


@given(torus_axes)
def test_a_gather_to_the_corner_moves_as_many_bytes_as_priced(group):
    n = group.members
    wires = simulate_messages(group, [(i, 0, 1.0) for i in range(1, n)])
    assert gather(n * 1.0, group).sent_bytes == pytest.approx(wires.sent_by_the_mean_member)
    if group.ways == 2:
        assert gather(n * 1.0, group).link_bytes == pytest.approx(wires.busiest)


def most_into(sizes, wraps, target, from_each, link):
    """Largest flow into one chip, when every chip has `from_each` to send and every link carries `link`, each way."""
    chips = list(itertools.product(*map(range, sizes)))
    room = {("source", c): from_each for c in chips}
    for c in chips:
        for axis, way in itertools.product(range(len(sizes)), (1, -1)):
            to = list(c)
            to[axis] += way
            if wraps[axis]:
                to[axis] %= sizes[axis]
            if 0 <= to[axis] < sizes[axis] and tuple(to) != c:
                room[c, tuple(to)] = room.get((c, tuple(to)), 0) + link
    beside = defaultdict(set)
    for u, v in room:
        beside[u].add(v)
        beside[v].add(u)
    flow = 0
    while True:
        came, queue = {"source": None}, ["source"]
        for u in queue:
            for v in beside[u]:
                if v not in came and room.get((u, v), 0) > 0:
                    came[v] = u
                    queue.append(v)
        if target not in came:
            return flow
        path, v = [], target
        while came[v] is not None:
            path.append((came[v], v))
            v = came[v]
        width = min(room[edge] for edge in path)
        for u, v in path:
            room[u, v] -= width
            room[v, u] = room.get((v, u), 0) + width
        flow += width


@pytest.mark.parametrize(
    ("sizes", "wraps"),
    [
        ((2, 2), (False, False)),
        ((3, 5), (False, False)),
        ((3, 4), (True, False)),
        ((3, 5), (True, True)),
        ((4, 4), (True, True)),
        ((2, 3, 4), (False, False, False)),
        ((3, 3, 4), (True, True, True)),
    ],
)
def test_links_of_several_axes_add_for_an_all_gather(sizes, wraps):
    # Edmonds: trees that carry every part to every chip fit into the links if each chip alone could receive all of it.
    group = Group(sizes=sizes, wraps=wraps, link_bytes_per_s=LINK)
    n, part = group.members, group.links  # a part of so many bytes makes the price a whole number of bytes
    link_bytes = all_gather(n * part, group).link_bytes
    assert link_bytes == pytest.approx(n - 1)
    for target in itertools.product(*map(range, sizes)):
        assert most_into(sizes, wraps, target, part, n - 1) == n * part
    corner = (0,) * len(sizes)
    assert most_into(sizes, wraps, corner, part, n - 2) < n * part  # one byte a link less, and it does not arrive


@pytest.mark.parametrize("name", ["v5e:2x4", "v5e:4x8", "v5e:8x16", "v6e:16x16", "v5p:2x2x1", "v4:4x4x4", "v5p:4x8x12"])
def test_an_all_to_all_over_a_whole_slice_loads_links_as_its_torus_says(name):
    group, torus = over(slice_of(name)), Torus(slice_of(name))
    assert all_to_all(group.members, group).link_bytes == pytest.approx(torus.all_to_all_load)
    assert group.hops == torus.diameter
    assert all_to_all(group.members, group).sent_bytes == pytest.approx(torus.mean_hops * (group.members - 1))


# Closed forms by hand.


def test_the_textbooks_ring():
    # V/W with W both ways, but for the n - 1 parts of n that a chip receives
    assert all_gather(8e9, ring(4)).seconds == pytest.approx(8e9 / (2 * LINK) * 3 / 4)
    assert all_gather(8e9, ring(4, ways=1)).seconds == pytest.approx(8e9 / LINK * 3 / 4)
    assert all_gather(8e9, line(4)).seconds == 2 * all_gather(8e9, ring(4)).seconds
    assert all_gather(8e9, switch(4)).seconds == pytest.approx(8e9 / LINK * 3 / 4)
    assert all_reduce(8e9, ring(4)) == 2 * all_gather(8e9, ring(4))


@pytest.mark.parametrize("n", [2, 4, 6, 16])
def test_an_all_to_all_is_a_quarter_of_the_all_gather_of_the_whole_array(n):
    whole = 7e8
    ratio = all_to_all(whole / n, ring(n)).seconds / all_gather(whole, ring(n)).seconds
    assert ratio == pytest.approx(1 / 4 * n / (n - 1))
    assert all_to_all(whole / n, ring(n, ways=1)).seconds == pytest.approx(all_gather(whole, ring(n, ways=1)).seconds / 2)


def test_an_all_to_all_on_a_torus_is_set_by_its_longest_axis():
    # the textbook's V max(A, B, C) / (4 n W), V the whole array
    group, whole = over(slice_of("v5p:4x8x12")), 5e9
    w = 2 * chip("v5p").ici_link_bytes_per_s
    assert all_to_all(whole / group.members, group).seconds == pytest.approx(whole * 12 / (4 * group.members * w))


def test_other_collectives_of_one_array():
    assert broadcast(9e9, ring(3)).bandwidth_s == pytest.approx(9e9 / (2 * LINK))
    assert broadcast(9e9, line(3)).bandwidth_s == pytest.approx(9e9 / LINK)
    assert broadcast(9e9, ring(3)).sent_bytes == pytest.approx(6e9)
    assert gather(9e9, line(3)).bandwidth_s == pytest.approx(6e9 / LINK)
    assert gather(9e9, switch(3)).sent_bytes == pytest.approx(2e9)
    assert permute(9e9, ring(5)).bandwidth_s == permute(9e9, line(5)).bandwidth_s == permute(9e9, switch(5)).bandwidth_s
    assert permute(9e9, ring(5), shift=-2) == permute(9e9, ring(5), shift=3)
    assert permute(9e9, ring(5, ways=1), shift=-2).link_bytes == 3 * 9e9


def test_hops_and_the_floor_they_set():
    assert [g.hops for g in (ring(5), ring(4), ring(4, ways=1), line(5), switch(5), ring(1), switch(1))] == [2, 2, 3, 4, 1, 0, 0]
    small = [f(8.0, line(5, hop_s=1e-6)) for f in (all_gather, all_reduce, all_to_all, permute)]
    assert [c.latency_s for c in small] == pytest.approx([4e-6, 8e-6, 4e-6, 4e-6])
    assert all(c.seconds == c.latency_s and c.binds == "latency" for c in small)
    assert permute(8.0, ring(5, hop_s=1e-6), shift=3).latency_s == pytest.approx(2e-6)


def test_the_start_is_added_and_can_bind():
    cost = all_gather(3e9, ring(3, start_s=5e-6, hop_s=1e-6))
    assert cost.seconds == pytest.approx(5e-6 + 1 / 30)
    assert cost.binds == "bandwidth"
    assert all_gather(3.0, ring(3, start_s=5e-6, hop_s=1e-6)).binds == "start"
    assert all_gather(3.0, ring(3, start_s=5e-6, hop_s=1e-6)).seconds == pytest.approx(6e-6)
    assert all_gather(3.0, ring(3, start_s=5e-6)).binds == "start"
    assert all_reduce(3.0, ring(3, start_s=5e-6)).start_s == 5e-6
    assert all_gather(0, ring(3)).binds == "nothing"


def test_efficiency_stretches_the_bandwidth_term_alone():
    lossy, ideal = (all_gather(3e9, ring(3, hop_s=1e-6, start_s=1e-6, efficiency=e)) for e in (0.8, 1))
    assert lossy.bandwidth_s == pytest.approx(ideal.bandwidth_s / 0.8)
    assert (lossy.latency_s, lossy.start_s, lossy.link_bytes) == (ideal.latency_s, ideal.start_s, ideal.link_bytes)


@pytest.mark.parametrize("f", ALL)
@pytest.mark.parametrize("make", [ring, line, switch])
def test_alone_there_is_nothing_to_do(f, make):
    assert f(7e9, make(1, hop_s=1e-6, start_s=1e-6)) == CollectiveCost()


def test_costs_add_and_scale():
    a, b = all_gather(3e9, ring(3, hop_s=1e-6)), all_to_all(5.0, line(7, hop_s=1e-6, start_s=2e-6))
    assert (a + b).seconds == a.seconds + b.seconds
    assert (a + b).link_bytes == a.link_bytes + b.link_bytes
    assert sum([a, a, a]).sent_bytes == pytest.approx((3 * a).sent_bytes)
    assert (a + b).binds == "bandwidth"
    assert (1000 * b).seconds == pytest.approx(1000 * b.seconds)
    assert str(a) == "33.3 ms, bandwidth binds (1 GB over the busiest link)"
    with pytest.raises(TypeError):
        a + 1.0
    with pytest.raises(ValueError, match="times=-1"):
        a * -1


# What holds for every group.


@given(one_axis, st.sampled_from(ALL), st.floats(0, 1e12), st.floats(1, 10))
def test_more_bytes_take_no_less_time_and_in_proportion(group, f, array_bytes, times):
    one, more = f(array_bytes, group), f(array_bytes * times, group)
    assert more.seconds >= one.seconds
    assert more.bandwidth_s == pytest.approx(one.bandwidth_s * times)


@given(
    st.sampled_from([all_gather, reduce_scatter, all_reduce, gather]), st.sampled_from([ring, line, switch]), st.integers(1, 40)
)
def test_a_larger_group_takes_longer_for_the_same_array(f, make, n):
    assert f(1e9, make(n + 1, hop_s=1e-6)).seconds >= f(1e9, make(n, hop_s=1e-6)).seconds


@given(st.sampled_from(ALL), st.integers(2, 12), st.floats(0, 1e12))
def test_a_ring_is_no_slower_than_a_line_nor_both_ways_than_one(f, n, array_bytes):
    assert f(array_bytes, ring(n)).seconds <= f(array_bytes, line(n)).seconds
    assert f(array_bytes, ring(n)).seconds <= f(array_bytes, ring(n, ways=1)).seconds


@given(one_axis, st.sampled_from(ALL))
def test_no_link_carries_more_than_its_members_send(group, f):
    cost = f(1e9, group)
    assert cost.seconds == group.start_s + max(cost.latency_s, cost.bandwidth_s)
    assert cost.sent_bytes <= 2 * cost.link_bytes + 1e-3  # two links a member at most, each as busy as the busiest


@given(st.permutations([3, 5, 7]), st.sampled_from([all_gather, all_reduce, all_to_all, broadcast, gather]))
def test_the_order_of_axes_does_not_matter(sizes, f):
    def of(sizes):
        return f(1e9, Group(sizes=tuple(sizes), wraps=(True, True, True), link_bytes_per_s=LINK))

    assert of(sizes).seconds == pytest.approx(of([3, 5, 7]).seconds)


# Groups of real slices.


def test_axes_of_a_slice_know_whether_they_wrap():
    v5e = slice_of("v5e:8x16")
    assert over(v5e) == over(v5e, 0, 1)
    assert (over(v5e, 0).links, over(v5e, 1).links, over(v5e).links) == (1, 2, 3)
    assert over(v5e, 0).link_bytes_per_s == chip("v5e").ici_link_bytes_per_s
    assert over(v5e, 0, ici="peak").link_bytes_per_s == chip("v5e").ici_link_peak_bytes_per_s
    assert over(slice_of("v5e:4x4"), 0, 1).hops == 6
    assert over(v5e, 1, ways=1).links == 1


def test_a_device_of_tpu7x_has_half_of_each_link():
    s = slice_of("tpu7x:4x4x4", count=3)
    assert over(s, 2).link_bytes_per_s == over(s, 2, per="chip").link_bytes_per_s / 2
    assert across(s).link_bytes_per_s == across(s, per="chip").link_bytes_per_s / 2 == chip("tpu7x").dcn_bytes_per_s / 2
    v5p = slice_of("v5p:4x4x4", count=3)
    assert over(v5p, 2) == over(v5p, 2, per="chip")
    assert across(v5p).members == 3


def test_gpus_have_a_fabric_and_a_network():
    h100 = slice_of("h100:8x4")
    assert over(h100, 0) == Group(sizes=(8,), link_bytes_per_s=chip("h100").fabric_bytes_per_s)
    assert over(h100, 1) == Group(sizes=(4,), link_bytes_per_s=chip("h100").dcn_bytes_per_s)
    assert over(slice_of("h100:8x1")) == over(h100, 0)
    assert over(slice_of("h100:8x1"), 1).members == 1


def test_an_axis_of_one_chip_is_neither_ring_nor_line():
    assert Group(sizes=(3, 1), wraps=(True, False), link_bytes_per_s=LINK, ways=1).links == 1


@pytest.mark.parametrize("make", [over, across])
@pytest.mark.parametrize("s", [slice_of("v5e:4x4", count=3), slice_of("h100:8x1", count=3)], ids=str)
def test_a_group_of_a_slice_takes_what_a_group_takes(make, s):
    figures = {"hop_s": 1e-6, "start_s": 2e-6, "efficiency": 0.9}
    assert make(s, **figures) == make(s).but(**figures)


def test_two_networks_add():
    # 4 nodes of 8: each GPU fetches the parts of its place in the other nodes, then the 8 share them
    nodes, node, whole = over(slice_of("h100:8x4"), 1), over(slice_of("h100:8x4"), 0), 32e9
    cost = all_gather(whole / node.members, nodes) + all_gather(whole, node)
    assert cost.seconds == pytest.approx(4e9 * 3 / 4 / 5e10 + 32e9 * 7 / 8 / 4.5e11)
    assert cost.sent_bytes == pytest.approx(whole * 31 / 32)


@pytest.mark.parametrize("in_network", [True, False])
def test_an_all_reduce_over_switches_goes_up_and_comes_back(in_network):
    there_and_back = all_reduce(8.0, switch(8).but(hop_s=1e-6), in_network=in_network)
    assert there_and_back.link_bytes == (9 if in_network else 14)  # (n + 1)/n, or 2(n - 1)/n, of 8 bytes
    assert there_and_back.latency_s == 2e-6


# Measurements.


def published(where):
    return [run for run in catalog.measurements("tpu7x") if run.what.startswith(f"all-gather on {where}")]


def predicted_and_measured(run, where, **figures):
    group = over(slice_of(f"tpu7x:{where}"), 0, 1, **figures)
    a_device = run.size / (2 * group.share)  # the published bytes are those that a chip receives, for its two devices
    return all_gather(a_device, group).seconds, run.size / run.value


@pytest.mark.parametrize("where", ["2x2x1", "2x2x2"])  # the calibration has seen the first alone
def test_one_calibration_predicts_every_measured_all_gather(where):
    figures = vars(tpu7x_calibration())
    assert len(published(where)) == 5
    for run in published(where):
        predicted, measured = predicted_and_measured(run, where, **figures)
        assert predicted == pytest.approx(measured, rel=0.03)


def test_the_calibration_is_a_few_microseconds_and_nearly_the_whole_link():
    # fitted by hand in the source of the rows: about 13 µs, and 180 GB/s over two links
    assert tpu7x_calibration().start_s == pytest.approx(13e-6, rel=0.05)
    assert tpu7x_calibration().efficiency == pytest.approx(0.99, abs=0.01)


def test_without_the_calibration_the_smallest_is_far_off():
    predicted, measured = predicted_and_measured(published("2x2x1")[0], "2x2x1")
    assert predicted < 0.5 * measured


def test_measurements_stay_below_the_ideal_of_rings():
    for name in ("a100-80gb", "h200"):
        (run,) = [run for run in catalog.measurements(name) if run.what.startswith("all-reduce by rings")]
        assert 0.7 < run.value / chip(name).fabric_bytes_per_s < 1


# Bad input.


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: all_gather(-1, ring(3)), "array_bytes=-1 is too small"),
        (lambda: all_gather("1 GB", ring(3)), "array_bytes='1 GB' is not a number"),
        (lambda: all_gather(float("nan"), ring(3)), "not finite"),
        (lambda: all_gather(1, 3), "group=3 is not a Group; make one with over"),
        (lambda: all_gather(1, slice_of("v5e:4x4")), "group=v5e:4x4 is not a Group"),
        (lambda: all_reduce(1, ring(3), in_network=True), "in_network=True.*has no switches"),
        (lambda: permute(1, ring(3), shift=0), "shift=0 moves nothing among 3"),
        (lambda: permute(1, ring(3), shift=-6), "shift=-6 moves nothing"),
        (lambda: permute(1, ring(3), shift=1.5), "shift=1.5"),
        (lambda: permute(1, ring(3), shift=True), "shift=True"),
        (lambda: permute(1, over(slice_of("v5e:4x4"))), r"sizes=\(4, 4\) has several axes; shift along one"),
        (lambda: line(3, ways=1), "ways=1 on a line.*use ways=2"),
        (lambda: ring(3, ways=3), "ways=3 is neither 1 nor 2"),
        (lambda: ring(0), "sizes=0 is not a size"),
        (lambda: ring(3, efficiency=90), "efficiency=90.*was a percentage meant"),
        (lambda: ring(3, efficiency=0), "efficiency=0 must be positive"),
        (lambda: ring(3, hop_s=-1e-6), "hop_s=-1e-06 is too small"),
        (lambda: ring(3, start_s="1"), "start_s='1' is not a number"),
        (lambda: Group(sizes=(3, 5), link_bytes_per_s=1), r"wraps=\(\): give one for each of sizes=\(3, 5\)"),
        (lambda: Group(sizes=(3,), wraps=(True, True), link_bytes_per_s=1), "give one for each"),
        (lambda: Group(sizes=(3,), link_bytes_per_s=-1), "link_bytes_per_s=-1 must be positive"),
        (lambda: over("v5e:4x4", 0), "slice='v5e:4x4' is not a Slice; look it up with hardware.slice_of"),
        (lambda: over(slice_of("v5e:4x4"), 2), r"axes=\(2,\): v5e:4x4 has axes 0 to 1"),
        (lambda: over(slice_of("v5e:4x4"), 0, 0), "name each at most once"),
        (lambda: over(slice_of("v5e:4x4"), 0, ici="boht"), "ici='boht'"),
        (lambda: over(slice_of("v5e:4x4"), 0, per="core"), "per='core' is neither"),
        (lambda: over(slice_of("h100:8x4"), 0, per="core"), "per='core' is neither"),
        (lambda: over(slice_of("v5e:4x4"), 0, ways=1), "ways=1 on a line"),
        (lambda: over(slice_of("h100:8x4")), "h100:8x4 has two networks; take over"),
        (lambda: across(3), "slice=3 is not a Slice"),
        (lambda: across(slice_of("v5e:4x4", count=2), per="host"), "per='host'"),
    ],
)
def test_what_cannot_be_priced_says_why(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_the_public_names_exist():
    assert all(hasattr(collectives, name) for name in collectives.__all__)
