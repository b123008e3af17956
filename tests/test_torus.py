import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_lib import hardware
from scaling_lib.hardware import Slice, chip, slice_of
from scaling_lib.torus import Torus

NAMES = ["v5e:1x1", "v5e:2x4", "v5e:8x4", "v5e:8x16", "v6e:16x16", "v5p:2x2x1", "v5p:4x2x4", "v4:4x4x4", "v5p:4x8x12"]
TWISTED = ["v5p:4x4x8", "v5p:8x4x4", "v5p:4x8x8", "v5p:8x4x8"]
TORI = [*(Torus(slice_of(name)) for name in NAMES), *(Torus(slice_of(name), twisted=True) for name in TWISTED)]
SMALL = [t for t in TORI if t.slice.chips <= 256]


def chips_of(torus):
    return list(itertools.product(*map(range, torus.shape)))


def breadth_first(torus, start):
    """Hops from one chip to all, by walking the links."""
    far, queue = {start: 0}, [start]
    for at in queue:
        for to in torus.neighbors(at):
            if to not in far:
                far[to] = far[at] + 1
                queue.append(to)
    return far


def disjoint_routes(torus, a, b):
    """How many shortest routes fit beside each other with no link in common: the largest flow, by augmenting paths."""
    far = breadth_first(torus, b)
    free = {(u, v): 1 for u in far for v in torus.neighbors(u) if far[v] < far[u]}
    found = 0
    while True:
        came, queue = {a: a}, [a]
        for u in queue:
            for v in torus.neighbors(u):
                if v not in came and free.get((u, v), 0):
                    came[v] = u
                    queue.append(v)
        if b not in came:
            return found
        found, v = found + 1, b
        while v != a:
            u = came[v]
            free[u, v], free[v, u] = free[u, v] - 1, free.get((v, u), 0) + 1
            v = u


@pytest.mark.parametrize("torus", TORI, ids=str)
def test_hops_are_those_of_a_walk_over_the_links(torus):
    for start in ((0,) * len(torus.shape), tuple(n // 3 for n in torus.shape)):
        far = breadth_first(torus, start)
        assert set(far) == set(chips_of(torus))
        for to, hops in far.items():
            assert torus.hops(start, to) == torus.hops(to, start) == hops


@pytest.mark.parametrize("torus", TORI, ids=str)
def test_a_route_is_links_one_after_the_other_and_as_long_as_its_hops(torus):
    start = tuple(n // 3 for n in torus.shape)
    for to in chips_of(torus):
        route = torus.route(start, to)
        assert (route[0], route[-1], len(route)) == (start, to, torus.hops(start, to) + 1)
        assert all(there in torus.neighbors(here) for here, there in itertools.pairwise(route))


@pytest.mark.parametrize("torus", SMALL, ids=str)
def test_diameter_mean_and_links_are_those_of_all_pairs(torus):
    chips = chips_of(torus)
    hops = [far for chip in chips for to, far in breadth_first(torus, chip).items() if to != chip]
    assert torus.diameter == max(hops, default=0)
    assert torus.mean_hops == pytest.approx(sum(hops) / max(1, len(hops)))
    links = [len(torus.neighbors(chip)) for chip in chips]
    assert (torus.links, torus.links_per_chip) == (sum(links) / 2, max(links))


@pytest.mark.parametrize("torus", [t for t in SMALL if t.slice.chips > 1], ids=str)
def test_the_bisection_is_the_smallest_plane_cut_counted_link_by_link(torus):
    def cut(axis):
        return sum(
            (chip[axis] < torus.shape[axis] // 2) > (to[axis] < torus.shape[axis] // 2)
            for chip in chips_of(torus)
            for to in torus.neighbors(chip)
        )

    assert torus.bisection_links == min(cut(axis) for axis, n in enumerate(torus.shape) if n > 1)


@pytest.mark.parametrize("torus", [t for t in SMALL if 1 < t.slice.chips <= 64 or t.twisted], ids=str)
def test_as_many_routes_as_ports_share_no_link(torus):
    start = tuple(n // 3 for n in torus.shape)
    for to in chips_of(torus)[:: 1 if torus.slice.chips <= 128 else 5]:
        if to != start:
            assert torus.ports(start, to) == disjoint_routes(torus, start, to)


def test_all_to_all_load_by_counting_one_route_of_each_pair():
    # On lines there is one way along an axis, so that routes axis by axis load the links as the formula says.
    torus, load = Torus(slice_of("v5e:4x8")), {}
    for a, b in itertools.permutations(chips_of(torus), 2):
        for link in itertools.pairwise(torus.route(a, b)):
            load[link] = load.get(link, 0) + 1
    assert torus.all_to_all_load == max(load.values()) == 4 * 4 * 4


def test_all_to_all_load_of_rings_is_hops_spread_over_links():
    torus = Torus(slice_of("v4:4x4x4"))
    hops = sum(breadth_first(torus, (0, 0, 0)).values()) * 64
    assert torus.all_to_all_load == hops / (2 * torus.links)  # equal axes load all links alike


def loads_by_moving_messages(torus):
    """Messages over every link, one way, each moved along axis 0, then 1, then 2; half each way where both are as short."""
    loads = dict.fromkeys(((a, b) for a in chips_of(torus) for b in torus.neighbors(a)), 0.0)
    for a, b in itertools.permutations(chips_of(torus), 2):
        ways = []
        for n, wrap, x, y in zip(torus.shape, torus.slice.wraps, a, b, strict=True):
            up, down = (y - x) % n, (x - y) % n
            ways.append([(1, up)] * (up <= down) + [(-1, down)] * (down <= up) if wrap else [(1 if y > x else -1, abs(y - x))])
        for axis, choices in enumerate(ways):
            for way, steps in choices:
                at = [*b[:axis], a[axis], *a[axis + 1 :]]
                for _ in range(steps):
                    to = [(x + way * (i == axis)) % n for i, (x, n) in enumerate(zip(at, torus.shape, strict=True))]
                    loads[tuple(at), tuple(to)] += 1 / len(choices)
                    at = to
    return loads


@pytest.mark.parametrize("name", ["v5e:2x4", "v5e:8x4", "v5e:8x16", "v5p:4x2x4", "v4:4x4x4"])
def test_link_loads_of_an_all_to_all_are_those_of_messages_moved_one_by_one(name):
    torus = Torus(slice_of(name))
    assert torus.all_to_all_loads() == pytest.approx(loads_by_moving_messages(torus))


@pytest.mark.parametrize("torus", [t for t in TORI if not t.twisted], ids=str)
def test_link_loads_have_the_busiest_link_and_all_hops(torus):
    loads, chips = torus.all_to_all_loads(), torus.slice.chips
    assert len(loads) == 2 * torus.links
    assert max(loads.values(), default=0) == torus.all_to_all_load
    assert sum(loads.values()) == pytest.approx(torus.mean_hops * chips * (chips - 1))


# What the vendor publishes.


@pytest.mark.parametrize(("name", "published"), [("v5e:16x16", 1.6e12), ("v6e:16x16", 3.2e12)])
def test_the_bisection_of_a_pod_is_what_the_vendor_states(name, published):
    # docs.cloud.google.com/tpu/docs/v5e and v6e, "bisection bandwidth per pod"
    assert Torus(slice_of(name)).bisection_bytes_per_s("peak") == published


def test_the_bisection_of_a_v4_pod_is_near_what_the_vendor_states():
    # docs.cloud.google.com/tpu/docs/v4: 24 TB/s; 512 links of 50 GB/s are 25.6, of the 45 GB/s that transfers reach, 23
    pod = Torus(slice_of("v4:16x16x16"))
    assert pod.bisection_bytes_per_s() < 24e12 < pod.bisection_bytes_per_s("peak")


@pytest.mark.parametrize(("name", "gain", "measured"), [("v4:4x4x8", 0.7, 1.63), ("v4:4x8x8", 0.4, 1.31)])
def test_a_twist_helps_an_all_to_all_as_much_as_the_vendor_states(name, gain, measured):
    # docs.cloud.google.com/tpu/docs/v5p, "Twisted torus topologies": about 70 % and 40 %; arXiv:2304.01433 measured 1.63 and 1.31
    plain, twisted = Torus(slice_of(name)), Torus(slice_of(name), twisted=True)
    ratio = plain.all_to_all_load / twisted.all_to_all_load
    assert ratio == pytest.approx(1 + gain, abs=0.05)
    assert measured < ratio


@pytest.mark.parametrize(("shape", "mean"), [("8x8x16", 7 / 8), ("8x16x16", 35 / 32)])
def test_twisted_tori_have_the_published_distances(shape, mean):
    # arXiv:1311.2019: diameter 3k/2 for both, mean distance near 7k/8 and 35k/32 (of all chips, the sender included)
    torus = Torus(slice_of(f"v4:{shape}"), twisted=True)
    assert torus.diameter == 12
    assert torus.mean_hops == pytest.approx(mean * 8, rel=0.01)


def test_a_wrap_halves_the_diameter():
    assert Torus(slice_of("v5e:16x16")).diameter == 16
    assert Torus(slice_of("v5e:8x8")).diameter == 14


# Times.


def test_a_transfer_takes_all_ports_that_lead_there():
    torus = Torus(slice_of("v5e:4x8"))
    assert (torus.ports((0, 0), (3, 5)), torus.ports((0, 0), (0, 5)), torus.ports((0, 0), (0, 0))) == (2, 1, 0)
    assert torus.transfer_s((0, 0), (3, 5), 9e10) == 9e10 / (2 * chip("v5e").ici_link_bytes_per_s)
    assert torus.transfer_s((0, 0), (0, 5), 9e10, ici="peak") == 9e10 / chip("v5e").ici_link_peak_bytes_per_s
    assert torus.transfer_s((1, 5), (1, 5), 9e10) == 0
    assert torus.first_byte_s((0, 0), (3, 5), hop_s=2e-6) == 16e-6


def test_halfway_around_a_ring_both_ways_lead_there():
    assert Torus(slice_of("v5e:16x16")).ports((0, 3), (8, 3)) == 2
    assert Torus(slice_of("v5e:16x16")).ports((0, 3), (7, 3)) == 1


@given(st.sampled_from(TORI), st.data())
def test_hops_obey_the_triangle(torus, data):
    a, b, c = (data.draw(st.tuples(*(st.integers(0, n - 1) for n in torus.shape))) for _ in range(3))
    assert torus.hops(a, c) <= torus.hops(a, b) + torus.hops(b, c)
    assert torus.hops(a, c) <= torus.diameter


def test_several_slices_are_each_a_torus():
    assert Torus(slice_of("v5e:4x4", count=3)).links == Torus(slice_of("v5e:4x4")).links == 24


def test_the_name_is_the_compilers():
    assert str(Torus(slice_of("v5p:4x4x8"), twisted=True)) == "v5p:4x4x8_twisted"
    assert Torus(slice_of("v5p:4x4x8")).name == "v5p:4x4x8"


def test_the_largest_pod_is_no_matter():
    pod = Torus(Slice(chip("v5p"), chip("v5p").pod_shape))
    assert (pod.diameter, pod.bisection_links, len(pod.route((0, 0, 0), (8, 10, 14)))) == (32, 640, 33)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Torus(slice_of("h100:8x4")), "slice=h100:8x4 has no torus"),
        (lambda: Torus("v5e:4x4"), "slice=v5e:4x4 has no torus; give a TPU slice"),  # type: ignore[arg-type]
        (lambda: Torus(slice_of("v4:4x4x4"), twisted=True), "v4:4x4x4 cannot be twisted"),
        (lambda: Torus(slice_of("v4:4x4x12"), twisted=True), "v4:4x4x12 cannot be twisted"),
        (lambda: Torus(slice_of("v4:2x4x4"), twisted=True), "v4:2x4x4 cannot be twisted"),
        (lambda: Torus(slice_of("v5e:8x16"), twisted=True), "v5e:8x16 cannot be twisted"),
        (lambda: TORI[-1].all_to_all_loads(), "v5p:8x4x8_twisted is twisted.*see all_to_all_load"),
        (lambda: TORI[1].hops((0, 0), (2, 0)), r"b=\(2, 0\) is no chip of v5e:2x4; the last one is \(1, 3\)"),
        (lambda: TORI[1].hops((0, -1), (0, 0)), r"a=\(0, -1\) is no chip"),
        (lambda: TORI[1].route((0, 0, 0), (0, 0)), r"a=\(0, 0, 0\) is no chip"),
        (lambda: TORI[1].neighbors((0.5, 1)), r"chip=\(0.5, 1\) is no chip"),
        (lambda: TORI[1].first_byte_s((0, 0), (1, 1), hop_s=-1), "hop_s=-1 is too small"),
        (lambda: TORI[1].transfer_s((0, 0), (1, 1), -1), "bytes=-1 is too small"),
        (lambda: TORI[1].bisection_bytes_per_s("boht"), "ici='boht'"),  # type: ignore[arg-type]
        (lambda: Torus(_no_link()).bisection_bytes_per_s(), "no sourced figure for ici_link_bytes_per_s"),
    ],
)
def test_what_cannot_be_answered_says_why(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def _no_link():
    return Slice(hardware.Chip("mine", {}, kind="tpu", pod_shape=(16, 16)), (4, 4))
