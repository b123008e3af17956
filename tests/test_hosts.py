"""Training by many processes: command lines, messages, what is left running, the whole drill, and the files for clusters."""

import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

from scaling_lib.xla import llama
from scaling_lib.xla.hosts import driver, worker
from scaling_lib.xla.hosts.drill import Drill, drill, main
from scaling_lib.xla.hosts.driver import Job, Workers

ROOT = Path(__file__).parents[1]
WORKER = [sys.executable, "-m", "scaling_lib.xla.hosts.worker"]
SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


def runs(pid):
    """Whether a process runs; one that ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def dies(pid, within_s=10):
    until = time.monotonic() + within_s
    while runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not runs(pid)


def used_s():
    """Seconds of processor time of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture
def workers():
    made = Workers([], [])
    yield made
    made.stop()


def python(code):
    return [sys.executable, "-c", code]


# What a process is told


def test_a_command_line_is_one_that_the_worker_takes(tmp_path):
    job = Job(tmp_path, fsdp=True, steps=7, every=3, batch=15)
    lines = [driver.command(job, 5, process, 1234) for process in range(5)]
    read = [worker.parser().parse_args(line[3:]) for line in lines]
    assert [given.process for given in read] == [0, 1, 2, 3, 4]
    assert {given.coordinator for given in read} == {"localhost:1234"}
    first = read[0]
    assert (first.processes, first.fsdp, first.steps, first.every, first.batch, first.hold) == (5, True, 7, 3, 15, None)
    assert first.lifeline
    other = worker.parser().parse_args(driver.command(Job(tmp_path, hold=0), 5, 0, 1234)[3:])
    assert (other.fsdp, other.hold) == (False, 0)


def test_a_cluster_needs_no_more_than_the_folder():
    given = worker.parser().parse_args(["--folder", "gs://mine/run"])
    assert (given.coordinator, given.processes, given.process, given.lifeline) == (None, None, None, False)


def test_the_surroundings_are_those_of_one_device(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=16")
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    found = driver.environment()
    assert found["JAX_NUM_CPU_DEVICES"] == "1"
    assert "device_count" not in found["XLA_FLAGS"]
    assert "JAX_ENABLE_X64" not in found


def test_a_batch_spread_over_devices_is_the_batch():
    mesh = jax.make_mesh((3,), ("X",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:3])
    batch = {"tokens": np.arange(6 * 5).reshape(6, 5), "targets": np.arange(6 * 5).reshape(6, 5) + 1}
    got = worker.spread(mesh, batch, worker.SHARDS)
    assert {name: array.addressable_shards[1].data.shape for name, array in got.items()} == {"tokens": (2, 5), "targets": (2, 5)}
    for name, array in got.items():
        np.testing.assert_array_equal(array, batch[name])


@pytest.mark.parametrize(("rules", "cut"), [(worker.COPIES, None), (worker.SHARDS, "X")])
def test_weights_are_copies_or_shards(rules, cut):
    mesh = jax.sharding.AbstractMesh((4,), ("X",))
    found = llama.shardings(mesh, llama.shapes(worker.SMALL), rules)
    assert found["layers"]["query"].spec[1] == cut


# Bad input


def test_a_port_in_use_is_named():
    with socket.socket() as other:
        other.bind(("localhost", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=rf"port={port} cannot be used \(Address already in use\); give another"):
            driver.free_port(port)
    assert driver.free_port(port) == port


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_what_is_no_port_is_named(port):
    with pytest.raises(ValueError, match=f"port={port} is none; give one from 1024"):
        driver.free_port(port)


def test_nothing_starts_on_a_port_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr(Workers, "start", lambda *given: pytest.fail("started"))
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        with pytest.raises(ValueError, match="cannot be used"), driver.started(Job(tmp_path), 2, port=other.getsockname()[1]):
            pass


def test_a_batch_that_the_processes_do_not_divide_is_named(tmp_path):
    message = r"batch=16 does not divide over processes=3; give a multiple of 3"
    with pytest.raises(ValueError, match=message), driver.started(Job(tmp_path), 3):
        pass
    with pytest.raises(ValueError, match=r"B=17 sequences do not divide over \d+ devices"):
        worker.train(str(tmp_path), worker.SMALL, 3, 2, B=17)


@pytest.mark.parametrize("name", ["steps", "every", "batch"])
def test_sizes_of_a_job_are_checked(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name}=0"):
        Job(tmp_path, **{name: 0})


@pytest.mark.parametrize("after", [3, 11])
def test_a_kill_that_shows_nothing_is_refused(tmp_path, after):
    with pytest.raises(ValueError, match=f"kill_after={after}: give 4, the first checkpoint, to 10"):
        drill(Job(tmp_path), kill_after=after)


def test_an_earlier_drill_is_not_gone_on_with(tmp_path):
    (tmp_path / "killed").mkdir()
    with pytest.raises(ValueError, match="has an earlier drill"):
        drill(Job(tmp_path))


# A worker that dies, or hangs


def test_a_worker_that_dies_is_named_with_its_last_words(workers, tmp_path):
    workers.start(SLEEPS, tmp_path / "0")
    workers.start(python("import sys; sys.exit('no TPU here')"), tmp_path / "1")
    with pytest.raises(
        RuntimeError, match=r"process 1 of 2 ended with status 1; its last words are in .*1\.err\n    no TPU here$"
    ):
        workers.wait(20)


def test_of_two_that_die_the_one_that_was_killed_is_named(workers, tmp_path):
    workers.start(python("import os; os.abort()"), tmp_path / "0")
    workers.running[0].wait()
    workers.start(SLEEPS, tmp_path / "1")
    os.kill(workers.running[1].pid, signal.SIGKILL)
    with pytest.raises(
        RuntimeError, match="process 1 of 2 was killed by SIGKILL; the run goes on from its newest checkpoint when"
    ):
        workers.wait(20)


def test_a_run_that_takes_too_long_is_named(workers, tmp_path):
    workers.start(SLEEPS, tmp_path / "0")
    workers.start(python(""), tmp_path / "1")
    workers.running[1].wait()
    with pytest.raises(TimeoutError, match=r"processes 0 still run after 0\.2 s"):
        workers.wait(0.2)


def test_waiting_for_a_step_ends_when_its_loss_is_known(workers, tmp_path):
    lines = ["[Gloo] Rank 0", '{"event": "start", "step": 3}', '{"step": 3, "loss": 5.5}', '{"step": 4, "lo']
    workers.start(python(f"import time; print({chr(10).join(lines)!r}, end='', flush=True); time.sleep(60)"), tmp_path / "0")
    workers.wait(20, step=3)
    assert (workers.losses(), workers.begun()) == ({3: 5.5}, 3)


def test_a_step_that_never_comes_is_named(workers, tmp_path):
    workers.start(python(""), tmp_path / "0")
    with pytest.raises(RuntimeError, match="the run ended before step=7"):
        workers.wait(20, step=7)


# Nothing is left running


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_nothing_is_left_after_an_interrupt_or_an_error(tmp_path, monkeypatch, error):
    grandchild = f"import subprocess; print(subprocess.Popen({SLEEPS!r}).pid, flush=True)"
    stubborn = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {grandchild}; time.sleep(60)"
    monkeypatch.setattr(driver, "command", lambda *given: python(stubborn))
    pids = []

    def watched():
        with driver.started(Job(tmp_path), 2) as workers:
            while len(pids) < 2:
                pids[:] = [int(text) for path in tmp_path.glob("*.out") if (text := path.read_text())]
            pids.extend(process.pid for process in workers.running)
            assert all(map(runs, pids))
            raise error

    with pytest.raises(error):
        watched()
    assert all(map(dies, pids))


def test_nothing_is_left_when_a_start_fails(tmp_path, monkeypatch):
    commands = {0: SLEEPS, 1: ["/no/such/program"]}
    monkeypatch.setattr(driver, "command", lambda job, processes, process, port: commands[process])
    begun = []
    real = subprocess.Popen
    monkeypatch.setattr(driver.subprocess, "Popen", lambda *args, **how: begun.append(real(*args, **how)) or begun[-1])
    with pytest.raises(FileNotFoundError), driver.started(Job(tmp_path), 2):
        pass
    assert [process.poll() for process in begun] == [-signal.SIGKILL]


def test_nothing_is_left_after_control_c(tmp_path):
    script = f"""
import pathlib, sys, time
from scaling_lib.xla.hosts import driver
driver.command = lambda *given: {SLEEPS!r}
with driver.started(driver.Job(pathlib.Path({str(tmp_path)!r})), 2) as workers:
    print(*(process.pid for process in workers.running), flush=True)
    workers.wait(60)
"""
    with subprocess.Popen(python(script), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as interrupted:
        pids = [int(pid) for pid in interrupted.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(runs, pids))
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.stderr.read().endswith("KeyboardInterrupt\n")
    assert all(map(dies, pids))


@pytest.mark.slow
def test_workers_die_with_a_driver_that_is_killed(tmp_path):
    script = f"""
import pathlib, time
from scaling_lib.xla.hosts import driver
with driver.started(driver.Job(pathlib.Path({str(tmp_path)!r}), hold=0), 2) as workers:
    workers.wait(60, step=0)
    print(*(process.pid for process in workers.running), flush=True)
    time.sleep(60)
"""
    killed = subprocess.Popen(python(script), stdout=subprocess.PIPE, cwd=ROOT)
    with killed:
        pids = [int(pid) for pid in killed.stdout.readline().split()]
        killed.kill()
    assert len(pids) == 2
    assert all(map(dies, pids))


# The drill


def test_what_a_drill_found():
    found = Drill({0: 4.0, 1: 3.0, 2: 2.0}, {0: 4.0, 1: 3.003}, {1: 3.0, 2: 1.9998}, 1, 4, 2, 9.0)
    assert found.apart == pytest.approx(1e-3)
    assert found.lost == 1
    assert str(found) == (
        "4 processes, one killed after step 1; 2 went on from step 1 to 2 (1 steps done twice); losses equal to 1e-03; 9 s"
    )


@pytest.mark.weekly
def test_the_drill_of_the_command_line_is_of_copies_and_of_shards(tmp_path, capsys):
    """Lab 10b does that of shards wherever its page runs."""
    before = used_s()
    main(["--folder", str(tmp_path)])
    assert used_s() - before <= 2 * 120  # that is 120 s on two cores, whatever else they do now
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["copies", "shards"]
    told = (
        r"4 processes, one killed after step 9; 2 went on from step 8 to 11 \(2 steps done twice\); losses equal to (\S+); \d+ s$"
    )
    found = [re.search(told, line) for line in lines]
    assert all(float(each[1]) <= 1e-4 for each in found)


DIES_IN_MID_SAVE = """
import os, sys, time
from scaling_lib.xla.hosts import worker

rename = os.rename


def stuck(old, new, **how):
    if str(new).endswith("checkpoints/4"):
        print('{"event": "saving"}', flush=True)
        time.sleep(60)
    rename(old, new, **how)


os.rename = stuck
worker.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_after_a_death_in_mid_save_a_run_goes_on_from_the_checkpoint_before(tmp_path, monkeypatch):
    job = Job(tmp_path, steps=6, every=2)
    real = driver.command
    monkeypatch.setattr(driver, "command", lambda *given: [*python(DIES_IN_MID_SAVE), *real(*given)[3:]])
    until = time.monotonic() + 90
    with driver.started(job, 1) as workers:
        while not any(line.get("event") == "saving" for line in workers.said()):
            assert workers.running[0].poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        before = workers.losses()
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert "2" in kept
    assert any(name.startswith("4.") for name in kept)
    monkeypatch.setattr(driver, "command", real)
    with driver.started(job, 1) as workers:
        workers.wait(90)
        assert workers.begun() == 2
        after = workers.losses()
    assert sorted(after) == [2, 3, 4, 5]
    assert [after[step] for step in (2, 3)] == pytest.approx([before[step] for step in (2, 3)], rel=1e-5)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"4", "6"}


@pytest.mark.slow
def test_processes_find_one_another_in_the_surroundings_of_slurm(tmp_path, monkeypatch, workers):
    """With what SLURM tells a process, and nothing on the command line."""
    told = {"SLURM_JOB_ID": str(driver.free_port() % 2**12), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    for name, value in (told | {"SLURM_LOCALID": "0"}).items():
        monkeypatch.setenv(name, value)
    for process in range(2):
        monkeypatch.setenv("SLURM_PROCID", str(process))
        line = [*WORKER, "--folder", str(tmp_path / "run"), "--steps", "2", "--lifeline"]
        workers.start(line, tmp_path / str(process))
    workers.wait(90)
    assert workers.said()[0] == {"event": "start", "step": 0, "processes": 2, "devices": 2}
    assert sorted(workers.losses()) == [0, 1]


# The files for clusters


def worker_line(script):
    """The worker's arguments in a shell script, which the worker's own parser must take."""
    joined = script.replace("\\\n", " ")
    [line] = [line for line in joined.splitlines() if "scaling_lib.xla.hosts.worker" in line]
    words = shlex.split(line.partition("scaling_lib.xla.hosts.worker")[2].split("||")[0])
    return worker.parser().parse_args(
        [word.replace("$SKYPILOT_NUM_NODES", "2").replace("$SKYPILOT_NODE_RANK", "1") for word in words]
    )


def read(name):
    return yaml.safe_load((ROOT / "deploy" / name).read_text())


def test_the_jobset_asks_for_the_whole_slice():
    found = read("gke-jobset.yaml")
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert JobsetV1alpha2JobSet.from_dict(found).to_dict() == found  # types are right, and no name is unknown
    [group] = found["spec"]["replicatedJobs"]
    job = group["template"]["spec"]
    pod = job["template"]["spec"]
    [container] = pod["containers"]
    chips = np.prod([int(n) for n in pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")])
    per_host = container["resources"]["limits"]["google.com/tpu"]
    assert job["parallelism"] == job["completions"] == chips // per_host
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert (job["completionMode"], job["backoffLimit"], pod["restartPolicy"]) == ("Indexed", 0, "Never")
    assert found["spec"]["failurePolicy"]["maxRestarts"] > 0
    assert_shell(container["args"][0])
    given = worker_line(container["args"][0])
    assert given.coordinator is None
    assert given.folder.startswith("gs://")
    assert "gcsfs" in container["args"][0]
    assert_divides(given, chips)


def test_the_script_for_slurm_is_bash_and_starts_a_process_a_gpu():
    script = (ROOT / "deploy" / "slurm.sh").read_text()
    assert_shell(script)
    options = dict(line[8:].split("=", 1) for line in script.splitlines() if line.startswith("#SBATCH --") and "=" in line)
    options = {name.lstrip("- "): value for name, value in options.items()}
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert f"srun --kill-on-bad-exit=1 --cpus-per-task={options['cpus-per-task']} " in script
    given = worker_line(script)
    assert given.coordinator is None
    assert_divides(given, int(options["nodes"]) * int(options["gpus-per-node"]))


@pytest.mark.parametrize(("ends", "restarts", "requeued"), [(0, None, False), (1, None, True), (1, 3, True), (1, 4, False)])
def test_the_script_for_slurm_queues_the_job_again_after_a_failure(tmp_path, ends, restarts, requeued):
    """With imitations of `srun`, `scontrol` and Python, which write down how they were called."""
    bin, folder = tmp_path / "bin", tmp_path / "run"
    bin.mkdir()
    write = 'echo "$(basename "$0") $*" >> "$CALLS"\n'
    programs = {
        "python3": 'mkdir -p "$3/bin" && cp "$(dirname "$0")/pip" "$3/bin"\n',
        "pip": "",
        "srun": f"exit {ends}\n",
        "scontrol": "",
    }
    for name, does in programs.items():
        (bin / name).write_text("#!/bin/bash\n" + write + does)
        (bin / name).chmod(0o755)
    calls = tmp_path / "calls"
    told = {"FOLDER": str(folder), "CALLS": str(calls), "SLURM_JOB_ID": "77", "PATH": f"{bin}:{os.environ['PATH']}"}
    told |= {} if restarts is None else {"SLURM_RESTART_COUNT": str(restarts)}
    script = str(ROOT / "deploy" / "slurm.sh")

    done = subprocess.run(["bash", script], env=told, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (ends, "")
    venv, pip, srun, *rest = calls.read_text().splitlines()
    assert venv == f"python3 -m venv {folder}/venv"
    assert pip.startswith("pip install")
    assert srun.startswith(
        f"srun --kill-on-bad-exit=1 --cpus-per-task=8 {folder}/venv/bin/python -m scaling_lib.xla.hosts.worker --folder {folder}/"
    )
    assert rest == (["scontrol requeue 77"] if requeued else [])

    calls.unlink()
    subprocess.run(["bash", script], env=told, check=False)
    assert calls.read_text().startswith("srun")  # installed once


def test_the_task_for_skypilot_names_the_processes():
    found = read("skypilot.yaml")
    assert_shell(found["setup"])
    assert_shell(found["run"])
    given = worker_line(found["run"])
    assert (given.coordinator, given.processes, given.process) == ("$first:8476", found["num_nodes"], 1)
    assert given.folder.startswith("gs://")
    assert "gcsfs" in found["setup"]
    assert_divides(given, found["num_nodes"] * int(found["resources"]["accelerators"].split(":")[1]))


def test_a_wrong_name_or_type_in_a_jobset_is_found():
    """That is, the model that it is read into has a say."""
    found = read("gke-jobset.yaml")
    job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    job["paralellism"] = job.pop("parallelism")
    assert JobsetV1alpha2JobSet.from_dict(found).to_dict() != found
    job["parallelism"] = "four"
    with pytest.raises(ValueError, match="valid integer"):
        JobsetV1alpha2JobSet.from_dict(found)


def assert_shell(script):
    """Of ShellCheck, which has nothing to say."""
    check = Path(sysconfig.get_path("scripts")) / "shellcheck"
    found = subprocess.run([check, "--shell=bash", "-"], input=script, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def assert_divides(given, devices):
    mesh = jax.sharding.AbstractMesh((int(devices),), ("X",))
    llama.shardings(mesh, llama.shapes(worker.SMALL), worker.SHARDS)
    assert given.fsdp
    assert given.batch % devices == 0
