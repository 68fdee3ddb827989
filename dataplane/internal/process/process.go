// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

package process

import (
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Spec says what to start. Path is absolute or relative to Dir; there is no lookup here.
type Spec struct {
	// ID names the tree; it is unique among living ones.
	ID   string
	Path string
	Argv []string
	Env  []string
	Dir  string
	// User is nil for the daemon's own credentials.
	User *syscall.Credential
	// Files become descriptors 0, 1, 2, … of the process.
	Files []uintptr
	// Session makes the process the leader of a new session instead of a new process group.
	Session bool
	// Terminal makes descriptor 0 the controlling terminal; it needs Session.
	Terminal bool
	// Inside takes the thread that forks into the world of the process, such as its namespaces. The
	// thread is thrown away afterwards. Nil forks in the daemon's world.
	Inside func() error
	// Run says that the process is one run from its start to its end. Others begin runs or have none.
	Run bool
	// Ambient are capabilities that the process gets besides those that every process here has.
	Ambient []uintptr
}

func (spec Spec) attributes(tree *Tree) *syscall.ProcAttr {
	sys := &syscall.SysProcAttr{
		Setpgid: !spec.Session, Setsid: spec.Session, Setctty: spec.Terminal, Credential: spec.User,
		AmbientCaps: spec.Ambient,
	}
	env := spec.Env
	if tree.group != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, tree.group.fd
	} else {
		env = append(env[:len(env):len(env)], marker+"="+spec.ID)
	}
	return &syscall.ProcAttr{Dir: spec.Dir, Env: env, Files: spec.Files, Sys: sys}
}

// ownPipes lets a process of another user reopen its standard descriptors by name, as in
// "> /dev/stderr".
func (spec Spec) ownPipes() {
	if spec.User == nil {
		return
	}
	for _, fd := range spec.Files {
		var stat unix.Stat_t
		if unix.Fstat(int(fd), &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFIFO {
			continue
		}
		if err := unix.Fchown(int(fd), int(spec.User.Uid), -1); err != nil {
			log.Printf("event=pipe_not_owned error=%q", err)
		}
	}
}

// Process is one started child.
type Process struct {
	PID  int
	Tree *Tree

	supervisor *Supervisor
	account    *account
	// killed is true once we sent a SIGKILL ourselves.
	killed atomic.Bool
	done   chan struct{}
	exit   Exit
}

// Exit says how a process ended. Signal is 0 unless it was killed; then Code is 128 plus the signal.
type Exit struct {
	Code   int
	Signal syscall.Signal
	// OOM is true when the end looks like a kill for memory (killed, or a shell that reports a killed
	// child) and such a kill happened meanwhile that nobody else claimed.
	OOM bool
	// MemoryLimitHit is true with OOM, and also when kills for memory happened while nothing but this
	// ran, however it ended.
	MemoryLimitHit bool
}

// LooksKilled reports whether the process, or the last one that a shell waited for, got SIGKILL.
func (e Exit) LooksKilled() bool { return e.Code == 128+int(unix.SIGKILL) }

// Done is closed once the process was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit is valid after Done.
func (p *Process) Exit() Exit { return p.exit }

// SignalGroup sends a signal to the process group of the process, as long as it lives.
func (p *Process) SignalGroup(sig syscall.Signal) {
	p.supervisor.signalChild(p, -p.PID, sig)
}

// SignalOther sends to another pid or group of the tree, as long as the process itself lives.
func (p *Process) SignalOther(target int, sig syscall.Signal) {
	p.supervisor.signalChild(p, target, sig)
}

// SignalTree sends a signal to everything that descends from the process, setsid or not.
func (p *Process) SignalTree(sig syscall.Signal) {
	p.SignalGroup(sig)
	p.Tree.signalStrays(sig)
}

// Release gives the tree back once the process was reaped. What still runs in it lives on.
func (p *Process) Release() {
	p.supervisor.groups.give(p.Tree)
}

// StartError is a start that failed for a reason the caller can act on.
type StartError struct {
	Errno   syscall.Errno
	Message string
}

func (e *StartError) Error() string { return e.Message }

func startError(spec Spec, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return fmt.Errorf("start %s: %w", spec.Argv[0], err)
	}
	message := fmt.Sprintf("%s: %s", spec.Argv[0], errno)
	switch errno {
	case unix.EAGAIN:
		message = "the sandbox's process limit is reached: " + message
	case unix.ENOMEM:
		message = "the sandbox's memory limit leaves no room for a process: " + message
	case unix.E2BIG:
		message = "the arguments and the environment are too long for one process: " + message
	case unix.EACCES:
		message = "the user may not execute the program, or not enter the directory " + spec.Dir + ": " + message
	case unix.EPERM:
		message = "the kernel refused the user or the group of the process: " + message
	}
	return &StartError{Errno: errno, Message: message}
}

// peekDead returns the pid of a child that ended and is not reaped yet, or 0.
func peekDead() int {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0
		}
		break
	}
	// si_pid is the first member after the three common ones and their padding on 64-bit Linux.
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), 16)))
}

// oomPreference makes the OOM killer choose user processes before the daemon.
const oomPreference = "500"

func preferForOOM(pid int) {
	name := "/proc/" + strconv.Itoa(pid) + "/oom_score_adj"
	if err := os.WriteFile(name, []byte(oomPreference), 0); err != nil && !isGone(err) {
		log.Printf("event=oom_score_not_set pid=%d error=%q", pid, err)
	}
}

func isGone(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist)
}

// ignoreGone drops the error of a signal that came too late. A refusal means the target changed
// its identity beyond our reach; the kill through the cgroup covers it.
func ignoreGone(err error) {
	if err != nil && !isGone(err) && err != unix.EPERM {
		log.Printf("event=signal_failed error=%q", err)
	}
}
