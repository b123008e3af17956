"""Stands between the grader and a submission: starts it with limits, watches it, and leaves no process behind.

A program of its own, `python -I guard.py CONFIG`; standard library only. It writes JSON lines to stdout: what guards the
submission, and what stopped it. It needs Linux. What a kernel or a container does not allow, the grader's report says.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_DEATH_SIGNAL, _DROP_CAPABILITY, _SUBREAPER, _NO_NEW_PRIVILEGES = 1, 24, 36, 38  # of prctl(2)
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # of unshare(2)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls of Landlock, the same on x86-64 and Arm

# Rights of Landlock, and how many of them each version of its interface knows.
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL

SYSTEM = (
    "/usr", "/bin", "/lib", "/lib64", "/proc", "/sys", "/etc/ld.so.cache", "/etc/localtime",
    "/etc/hosts", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/fonts", "/etc/mime.types", "/etc/ssl",
    "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom",
)  # fmt: skip
"""What any program on Linux may read."""


def landlock(read: Iterable[str], write: Iterable[str]) -> bool:
    """Deny all files but these to this process and its children, for good; False where the kernel cannot."""
    version = _LIBC.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return False
    handled = (1 << _RIGHTS[min(version, max(_RIGHTS))]) - 1
    scoped = 3 if version >= 6 else 0  # no signals and no abstract sockets to the outside
    wanted = struct.pack("QQQ", handled, 0, scoped)[: 24 if version >= 6 else 8]
    rules = _LIBC.syscall(_CREATE_RULESET, wanted, len(wanted), 0)
    if rules < 0:
        return False
    reads = {path: _EXECUTE | _READ | _LIST for path in read}
    for path, rights in {"/dev": _LIST, **reads, "/dev/null": _READ | _WRITE, **dict.fromkeys(write, handled)}.items():
        with suppress(FileNotFoundError):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = rights & handled & (handled if stat.S_ISDIR(os.fstat(place).st_mode) else _OF_FILES)
            _checked(_LIBC.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", allowed, place), 0))
            os.close(place)
    _checked(_LIBC.syscall(_RESTRICT_SELF, rules, 0))
    return True


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def own_network() -> bool:
    """Leave the machine's network for one that has this process and its children alone; False where that is not allowed."""
    user, group = os.getuid(), os.getgid()
    if _LIBC.unshare(_NEW_NETWORK | (_NEW_USER if user else 0)) < 0:
        return False
    if user:  # be the same user in the new space of users, too
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket() as any_socket:  # loopback is down there: read its flags, add "up"
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(any_socket, 0x8913, request))
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", flags | 1))
    return True


def other_user(config: dict[str, Any]) -> bool:
    """Become a user that owns nothing but the folder; only root can, and only where that user can read what it must."""
    needs = [Path(path) for path in (sys.executable, *config["needs"])]
    if os.getuid() != 0 or not all(_open_to_all(path) for path in needs):
        return False
    own = config["user"]
    for folder, _, files in os.walk(config["folder"]):
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            os.chown(path, own, own)
    try:
        os.setgroups([])
        os.setgid(own)
        os.setuid(own)
    except OSError:
        return False
    return True


def _open_to_all(path: Path) -> bool:
    real = path.resolve()
    return all(os.stat(above).st_mode & 1 for above in (*path.absolute().parents, *real.parents))


def confine(config: dict[str, Any]) -> dict[str, str]:
    """Give up all that the submission must not have, in the process that will be it. What guards, in words."""
    hook = "an audit hook only"
    guards = {"files": hook, "network": hook}
    with suppress(OSError):
        guards["network"] = "its own network" if own_network() else hook
    as_other = other_user(config)
    guards["user"] = "one of its own" if as_other else "the grader's own"
    limits = {"CORE": 0, "FSIZE": config["file_bytes"], "DATA": config["memory_bytes"]}
    limits |= {"NPROC": config["threads"]} if as_other else {}
    for name, most in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    _LIBC.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    for capability in range(64):
        _LIBC.prctl(_DROP_CAPABILITY, capability, 0, 0, 0)
    _LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if config["landlock"] and landlock(config["read"], [config["folder"]]):
        guards["files"] = "Landlock"
    return guards


def descendants(of: int) -> dict[int, int]:
    """Processes below one, each with the bytes of memory that it holds."""
    parents, memory = {}, {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                fields = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                memory[int(entry.name)] = int(fields[21]) * resource.getpagesize() if fields[0] != "Z" else -1
    below, more = {of}, {of}
    while more := {pid for pid, parent in parents.items() if parent in more} - below:
        below |= more
    return {pid: memory[pid] for pid in below - {of}}


def end_all(group: int) -> None:
    """Kill all processes below this one, and those that they start meanwhile."""
    for _ in range(200):
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
        for pid in descendants(os.getpid()):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not descendants(os.getpid()):
            return
        time.sleep(0.01)


def too_much(config: dict[str, Any], rounds: int) -> str:
    """What there is too much of; "" while all is within its limits."""
    held = descendants(os.getpid())
    if len(held) > config["processes"]:
        return f"started more than {config['processes']} processes"
    if sum(held.values()) > config["memory_bytes"]:
        return f"took more than {config['memory_bytes'] / 2**30:.1f} GiB of memory"
    if rounds % 5 == 0:
        used = 0
        for folder, _, files in os.walk(config["folder"]):
            for name in files:
                with suppress(OSError):
                    used += os.lstat(os.path.join(folder, name)).st_blocks * 512
        if used > 4 * config["file_bytes"]:
            return f"wrote more than {4 * config['file_bytes'] / 1e6:.0f} MB"
    return ""


def main() -> int:
    """Run the submission; 0 if it came to its end."""
    config = json.loads(sys.argv[1])
    _LIBC.prctl(_SUBREAPER, 1, 0, 0, 0)  # whoever loses its parent becomes a child of this process
    _LIBC.prctl(_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked_to_end.append(number))
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setsid()
            os.chdir(os.path.join(config["folder"], "work"))
            print(json.dumps({"guards": confine(config)}), flush=True)
            os.dup2(config["output"], 1)
            os.dup2(config["output"], 2)
            os.execve(config["argv"][0], config["argv"], config["environment"])
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(70)
    os.close(config["output"])
    os.close(config["report"])
    stopped, ended, rounds = "", 0, 0
    while not (ended or stopped or asked_to_end):
        time.sleep(0.2)
        rounds += 1
        stopped = too_much(config, rounds)
        try:
            while (done := os.waitpid(-1, os.WNOHANG))[0]:
                if done[0] == child:
                    ended, status = done
        except OSError as error:
            if error.errno != errno.ECHILD:
                raise
    end_all(child)
    if ended and (code := os.waitstatus_to_exitcode(status)):
        stopped = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"left with exit status {code}"
    print(json.dumps({"stopped": stopped}), flush=True)
    return bool(stopped)


if __name__ == "__main__":
    sys.exit(main())
