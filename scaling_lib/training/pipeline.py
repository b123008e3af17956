"""Pipeline parallelism: how long stages stand idle, and how many microbatches they keep, by formula and by playing the schedule.

The closed forms are for equal stages without transfer time; `simulate` takes unequal stages and transfers too. Derived in
chapters/05-training.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling_lib import units
from scaling_lib.training import checks, schedules
from scaling_lib.training.either import Number, maximum
from scaling_lib.training.schedules import Kind, Step

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
"""GPipe: all forward passes first. 1F1B: forward and backward in turn. Interleaved: 1F1B with several chunks of layers a stage.
Zero-bubble: ZB-H1, 1F1B with the weight gradients moved to where a stage would stand idle."""

MOST_JOBS = 200_000
"""Jobs of the largest run that `simulate` plays."""


def check(schedule: str, stages: int, microbatches: int, virtual: int = 1) -> None:
    """Refuse a pipeline that its schedule cannot run.

    Args:
        schedule: one of `SCHEDULES`.
        stages: parts of the model, each on its own group of chips.
        microbatches: of one step, through one pipeline.
        virtual: chunks of layers a stage has.

    Raises:
        ValueError: for an unknown schedule, sizes below 1, virtual stages of a schedule that has none (or one of "interleaved"),
            microbatches that are no multiple of the stages for "interleaved" or fewer than the stages for "zero-bubble".
    """
    _known(schedule)
    stages, microbatches = units.size("stages", stages), units.size("microbatches", microbatches)
    virtual = units.size("virtual", virtual)
    if schedule == "interleaved":
        if virtual == 1:
            raise ValueError("virtual=1: an interleaved schedule needs 2 or more chunks a stage; with one it is '1f1b'")
        if microbatches % stages:
            near = " or ".join(str(n * stages) for n in sorted({max(1, microbatches // stages), -(-microbatches // stages)}))
            raise ValueError(
                f"microbatches={microbatches} is no multiple of stages={stages}, which an interleaved schedule needs; give {near}"
            )
    elif virtual != 1:
        raise ValueError(f"virtual={virtual}: only schedule='interleaved' has several chunks a stage; give 1")
    if schedule == "zero-bubble" and microbatches < stages:
        raise ValueError(f"microbatches={microbatches} is below stages={stages}; a zero-bubble schedule needs at least as many")


def bubble(
    schedule: str,
    stages: Number,
    microbatches: Number,
    virtual: Number = 1,
    *,
    forward_s: Number = 1.0,
    backward_s: Number = 2.0,
    weight_s: Number = None,
) -> Number:
    """Time a stage stands idle in a step, over the time it works: (p - 1)/m for GPipe and 1F1B.

    As a share of the whole step it is b / (1 + b): (p - 1)/(m + p - 1). Exact for equal stages and no transfer time; then
    `simulate(...).bubble` is the same. The step ends for all stages together, as with a gradient norm over all of them.

    Args:
        schedule: one of `SCHEDULES`.
        stages: p; a number or an array, as all that follow. Arrays are not checked: leave out what `check` refuses.
        microbatches: m.
        virtual: v, chunks of layers a stage has; (p - 1)/(v m) for "interleaved".
        forward_s: forward pass of one microbatch through one stage. Durations matter to "zero-bubble" alone.
        backward_s: its backward pass, weight gradients included.
        weight_s: the part of `backward_s` for weight gradients; half of it if not given. With F, B, W for forward pass, input
            gradients and weight gradients, zero-bubble idles (p - 1) max(F + B - W, F, B).

    Raises:
        ValueError: as `check`, and for durations that are not positive or a `weight_s` above `backward_s`.

    Source: Huang et al. 2019, GPipe; Narayanan et al. 2021, section 2.2; Qi et al. 2024, Zero Bubble Pipeline Parallelism,
    table 2, which leaves out the floor max(F, B).
    NB: real pipelines also wait for transfers, and their first and last stages hold embedding and logits.
    """
    _known(schedule)
    weight_s = backward_s / 2 if weight_s is None else weight_s
    if not checks.has_array(stages, microbatches, virtual, forward_s, backward_s, weight_s):
        check(schedule, stages, microbatches, virtual)
        _durations(forward_s, backward_s, weight_s)
    if schedule == "zero-bubble":
        inputs_s = backward_s - weight_s
        idle_s = (stages - 1) * maximum(forward_s, inputs_s, forward_s + inputs_s - weight_s)
        return idle_s / (microbatches * (forward_s + backward_s))
    return (stages - 1) / (microbatches * virtual)


def in_flight(schedule: str, stage: Number, stages: Number, microbatches: Number, virtual: Number = 1) -> Number:
    """Microbatches whose activations a stage keeps at its peak: all m for GPipe, at most p - stage for 1F1B.

    In activations of all layers of a stage; with chunks it is a multiple of 1/v. A microbatch is kept from the start of its
    forward pass to the end of its last job, which is the weight gradient of a zero-bubble schedule.

    Args:
        schedule: one of `SCHEDULES`.
        stage: from 0; the first stage keeps the most. A number or an array, as all that follow.
        stages: p.
        microbatches: m.
        virtual: v; (2 (p - stage - 1) + (v - 1) p + 1)/v for "interleaved", and no more than m.

    Raises:
        ValueError: as `check`, and for a stage that the pipeline does not have.

    NB: after its backward pass a zero-bubble microbatch keeps less, the inputs of its weight gradients; here it counts in full.
    """
    _known(schedule)
    if not checks.has_array(stage, stages, microbatches, virtual):
        check(schedule, stages, microbatches, virtual)
        if units.number("stage", stage) not in range(stages):
            raise ValueError(f"stage={stage!r} is none of the {stages} stages; give 0 to {stages - 1}")
    if schedule == "gpipe":
        return microbatches + 0 * stage
    if schedule == "interleaved":
        return _least(2 * (stages - stage - 1) + (virtual - 1) * stages + 1, microbatches * virtual) / virtual
    return _least(stages - (0 * stage if schedule == "zero-bubble" else stage), microbatches)


@dataclass(frozen=True, slots=True)
class Job:
    """One job on one stage; `chunk` is numbered along the model. "backward" includes weight gradients without a job."""

    kind: Kind
    stage: int
    chunk: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training step through a pipeline, without the optimizer.

    Args:
        schedule: one of `SCHEDULES`.
        stages: p.
        microbatches: m.
        virtual: chunks of layers a stage has.
        jobs: of every stage, in the order it does them.
    """

    schedule: str
    stages: int
    microbatches: int
    virtual: int
    jobs: tuple[tuple[Job, ...], ...]

    @property
    def makespan_s(self) -> float:
        """From the first job's start to the last job's end."""
        return max(done[-1].end_s for done in self.jobs)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """How long every stage works."""
        return tuple(sum(job.end_s - job.start_s for job in done) for done in self.jobs)

    @property
    def idle(self) -> float:
        """Share of the stages' time, from the first job to the last, in which they stand idle."""
        return 1 - sum(self.busy_s) / (self.stages * self.makespan_s)

    @property
    def bubble(self) -> float:
        """Idle time over work, all stages together: what `bubble` gives for equal stages."""
        return self.stages * self.makespan_s / sum(self.busy_s) - 1

    @property
    def in_flight(self) -> tuple[float, ...]:
        """Microbatches whose activations every stage keeps at its peak, counted as by `in_flight`."""
        last: Kind = "weight" if self.schedule == "zero-bubble" else "backward"
        return tuple(_peak([job.kind for job in done], last) / self.virtual for done in self.jobs)


def simulate(
    schedule: str,
    stages: int,
    microbatches: int,
    virtual: int = 1,
    *,
    forward_s: float | Sequence[float] = 1.0,
    backward_s: float | Sequence[float] = 2.0,
    weight_s: float | Sequence[float] | None = None,
    p2p_s: float = 0.0,
) -> Run:
    """Play a schedule: every stage does its jobs in their fixed order, each as soon as what it needs has arrived.

    Args:
        schedule: one of `SCHEDULES`.
        stages: p.
        microbatches: m.
        virtual: chunks of layers a stage has; each takes 1/v of the stage's time.
        forward_s: forward pass of one microbatch through a stage; a sequence has a value for every stage.
        backward_s: its backward pass, weight gradients included; one or for every stage.
        weight_s: the part of `backward_s` for weight gradients, a job of its own in "zero-bubble"; half if not given.
        p2p_s: from the end of a job to the moment when the next stage has its result; both stages compute meanwhile.

    Raises:
        ValueError: as `check`, for durations out of range or not one a stage, and for more than `MOST_JOBS` jobs.
    """
    check(schedule, stages, microbatches, virtual)
    if 3 * stages * microbatches * virtual > MOST_JOBS:
        raise ValueError(
            f"stages={stages}, microbatches={microbatches}, virtual={virtual} make too many jobs to play; "
            f"keep 3 times their product below {MOST_JOBS:,}, or use bubble(...)"
        )
    units.number("p2p_s", p2p_s, minimum=0)
    forward, backward = _each("forward_s", forward_s, stages), _each("backward_s", backward_s, stages)
    weight = [each / 2 for each in backward] if weight_s is None else _each("weight_s", weight_s, stages)
    for durations in zip(forward, backward, weight, strict=True):
        _durations(*durations)
    if schedule == "zero-bubble":
        backward = [whole - part for whole, part in zip(backward, weight, strict=True)]
    length_s = {"forward": forward, "backward": backward, "weight": weight}

    todo = [schedules.order(schedule, stage, stages, microbatches, virtual) for stage in range(stages)]
    done: list[list[Job]] = [[] for _ in range(stages)]
    ended: dict[Step, float] = {}
    left = sum(map(len, todo))
    while left:
        before = left
        for stage, steps in enumerate(todo):
            while len(done[stage]) < len(steps):
                step = steps[len(done[stage])]
                start_s = done[stage][-1].end_s if done[stage] else 0.0
                if needed := schedules.needs(step, stages * virtual):
                    if needed not in ended:
                        break
                    moved = needed.chunk % stages != stage
                    start_s = max(start_s, ended[needed] + (p2p_s if moved else 0.0))
                ended[step] = start_s + length_s[step.kind][stage] / virtual
                done[stage].append(Job(step.kind, stage, step.chunk, step.microbatch, start_s, ended[step]))
                left -= 1
        assert left < before, f"the {schedule} schedule waits for itself"
    return Run(
        schedule=schedule, stages=stages, microbatches=microbatches, virtual=virtual, jobs=tuple(tuple(jobs) for jobs in done)
    )


def _known(schedule: str) -> None:
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r} is unknown; {units.near(str(schedule), SCHEDULES)}")


def _peak(kinds: Sequence[Kind], last: Kind) -> int:
    kept = most = 0
    for kind in kinds:
        kept += kind == "forward"
        most = max(most, kept)
        kept -= kind == last
    return most


def _each(name: str, value: float | Sequence[float], stages: int) -> list[float]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [units.number(name, value)] * stages
    if len(value) != stages:
        raise ValueError(f"{name} has {len(value)} values for {stages} stages; give one for all, or one each")
    return [units.number(name, each) for each in value]


def _durations(forward_s: float, backward_s: float, weight_s: float) -> None:
    checks.positive(forward_s=forward_s, backward_s=backward_s, weight_s=weight_s)
    if weight_s >= backward_s:
        raise ValueError(f"weight_s={weight_s!r} is a part of backward_s={backward_s!r} and must be below it")


def _least(a: Number, b: Number) -> Number:
    return -maximum(-a, -b)
