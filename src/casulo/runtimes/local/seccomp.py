# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""The system calls that a sandbox may make.

An allow list: a call that is not on it answers ENOSYS, as an older kernel would, so that programs
fall back instead of failing. Left out is what reaches the kernel's rarely trodden or privileged
parts: mounts and namespaces, modules, bpf, keyrings, perf, io_uring, userfaultfd, clocks, swap.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import tempfile
from typing import Any, ClassVar

from casulo.model.errors import RuntimeFailure

_NAMESPACE_FLAGS = 0x7E020000
"""All CLONE_NEW* flags that clone(2) takes: mount, cgroup, uts, ipc, user, pid and net."""

_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, 32-bit and uname26 variants, and the query; not the ones that weaken address layout."""

PROGRAM_KEY = "run.oci.seccomp_bpf_data"
"""The annotation in which crun takes a ready-made program."""

_ENOSYS = 38
_ARCHITECTURES = {"amd64": "SCMP_ARCH_X86_64", "arm64": "SCMP_ARCH_AARCH64"}

_ALLOWED = """
accept accept4 access alarm arch_prctl arm_fadvise64_64 arm_sync_file_range bind breakpoint brk
cacheflush cachestat capget capset chdir chmod chown chroot clock_getres
clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64
clone3 close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1
epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat
faccessat2 fadvise64 fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl
fcntl64 fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatat fstatat64 fstatfs
fstatfs64 fsync ftruncate ftruncate64 futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake
futimesat get_mempolicy get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid
geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom
getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid
getxattr getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy
io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit ioctl ioprio_get ioprio_set kill
landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen
listxattr listxattrat llistxattr llseek lremovexattr lseek lsetxattr lstat lstat64 madvise
map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2
mlockall mmap mmap2 modify_ldt mprotect mq_getsetattr mq_notify mq_open mq_timedreceive
mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv
msgsnd msync munlock munlockall munmap nanosleep newfstatat open openat openat2 pause pidfd_getfd
pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl
pread64 preadv preadv2 prlimit64 process_mrelease process_vm_readv process_vm_writev pselect6
pselect6_time64 ptrace pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recvfrom
recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr removexattrat rename renameat renameat2
restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam
sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop semtimedop_time64 sendfile
sendfile64 sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address set_tls setdomainname
setfsgid setfsuid setgid setgroups sethostname setitimer setpgid setpriority setregid setresgid
setresuid setreuid setrlimit setsid setsockopt setuid setxattr setxattrat shmat shmctl shmdt shmget
shutdown sigaltstack signalfd signalfd4 splice stat stat64 statfs statfs64 statx
symlink symlinkat sync sync_file_range sync_file_range2 syncfs sysinfo tee tgkill time timer_create
timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create
timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64
umask uname unlink unlinkat utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid write
writev
"""


_LOW_HALF = 0xFFFFFFFF
_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
_NETLINK, _NETLINK_ROUTE = 16, 0
"""Address families with a network namespace around them, and of netlink what lists interfaces.
AF_VSOCK, for one, knows no namespaces: it would join sandboxes to each other and to the hypervisor."""

_NESTING = "mount mount_setattr move_mount open_tree setns umount2"
_NEW_USER_NAMESPACE = 0x10000000


@functools.cache
def profile(architecture: str, *, clone3: bool, nesting: bool = False) -> dict[str, Any]:
    """The OCI `linux.seccomp` object for `amd64` or `arm64`; 32-bit calls end the process.

    The flags of clone3 are out of a filter's sight. It is allowed only where the sandbox's user
    namespace is closed to further namespaces; elsewhere it answers ENOSYS and libc uses clone.
    `nesting` adds what the daemon needs for isolated sessions. The kernel refuses those calls to all
    who do not hold CAP_SYS_ADMIN, and user namespaces, which would give it, cannot be unshared.
    """
    allowed = [name for name in _ALLOWED.split() if clone3 or name != "clone3"]
    without_users = {"index": 0, "value": _NEW_USER_NAMESPACE, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    nested: list[dict[str, Any]] = [
        {"names": _NESTING.split(), "action": "SCMP_ACT_ALLOW"},
        {"names": ["unshare"], "action": "SCMP_ACT_ALLOW", "args": [without_users]},
    ]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _ENOSYS,
        "architectures": [_ARCHITECTURES[architecture]],
        "syscalls": [
            {"names": allowed, "action": "SCMP_ACT_ALLOW"},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [_clone_without_namespaces()]},
            *(
                {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [_equals(p)]}
                for p in _PERSONALITIES
            ),
            *_sockets(),
            *(nested if nesting else ()),
        ],
    }


def _sockets() -> list[dict[str, Any]]:
    rules = [[_low_half(0, family)] for family in _FAMILIES.values()]
    rules.append([_low_half(0, _NETLINK), _low_half(2, _NETLINK_ROUTE)])
    names = ["socket", "socketpair"]
    return [{"names": names, "action": "SCMP_ACT_ALLOW", "args": arguments} for arguments in rules]


def _low_half(index: int, value: int) -> dict[str, Any]:
    """The kernel takes an int from the low half of a register; what is in the other is nobody's."""
    return {"index": index, "value": _LOW_HALF, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _clone_without_namespaces() -> dict[str, Any]:
    return {"index": 0, "value": _NAMESPACE_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}


def _equals(value: int) -> dict[str, Any]:
    return {"index": 0, "value": value, "op": "SCMP_CMP_EQ"}


def compiled(architecture: str, *, clone3: bool, nesting: bool = False) -> str | None:
    """The same profile as a filter program in base64; None where libseccomp is not installed.

    Building the program takes libseccomp several milliseconds, which the OCI runtime would spend
    again for every sandbox. crun takes it ready-made in an annotation.
    """
    try:
        library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError:
        return None
    rules = profile(architecture, clone3=clone3, nesting=nesting)
    return base64.b64encode(_Compiler(library).program(rules)).decode()


class _Comparison(ctypes.Structure):
    """struct scmp_arg_cmp of libseccomp."""

    _fields_: ClassVar = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


class _Compiler:
    """Drives libseccomp (seccomp.h, version 2) over a profile."""

    _ALLOW = 0x7FFF0000
    _ERRNO = 0x00050000
    _OPTIMIZE = 8  # SCMP_FLTATR_CTL_OPTIMIZE
    _BINARY_TREE = 2
    _OPERATORS: ClassVar = {"SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.seccomp_init.restype = ctypes.c_void_p
        library.seccomp_rule_add_array.argtypes = [
            ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Comparison)
        ]  # fmt: skip
        library.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
        library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.seccomp_release.argtypes = [ctypes.c_void_p]

    def program(self, rules: dict[str, Any]) -> bytes:
        """The filter as an array of struct sock_filter."""
        context = self._library.seccomp_init(self._ERRNO | rules["defaultErrnoRet"])
        if not context:
            raise RuntimeFailure("libseccomp could not begin a filter")
        try:
            self._library.seccomp_attr_set(context, self._OPTIMIZE, self._BINARY_TREE)
            for rule in rules["syscalls"]:
                for name in rule["names"]:
                    self._allow(context, name, rule.get("args", []))
            return self._export(context)
        finally:
            self._library.seccomp_release(context)

    def _allow(self, context: int, name: str, arguments: list[dict[str, Any]]) -> None:
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # unknown to this libseccomp, or not a call of this architecture: stays denied
            return
        comparisons = (_Comparison * max(1, len(arguments)))(
            *[
                _Comparison(a["index"], self._OPERATORS[a["op"]], a["value"], a.get("valueTwo", 0))
                for a in arguments
            ]
        )
        failed = self._library.seccomp_rule_add_array(
            context, self._ALLOW, number, len(arguments), comparisons
        )
        if failed:
            raise RuntimeFailure(f"libseccomp refused the rule for {name}: error {-failed}")

    def _export(self, context: int) -> bytes:
        with tempfile.TemporaryFile() as file:
            failed = self._library.seccomp_export_bpf(context, file.fileno())
            if failed:
                raise RuntimeFailure(f"libseccomp could not write the filter: error {-failed}")
            file.seek(0)
            return file.read()
