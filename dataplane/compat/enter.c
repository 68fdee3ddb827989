// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// Starts a program in control groups: `enter FOLDER FILE... -- PROGRAM ARGUMENT...`, where FILEs are open
// descriptors of v1 `tasks` files and FOLDER is one of a v2 group. A thread that moves itself within v1, and
// a process that is born in a v2 group, need not wait for the kernel to hold up every other process of the
// machine, as every other move does. Ends as the program does; the program ends when this one is killed.
// The program gets none of these descriptors, nor the one that this is executed by (`/proc/self/fd/NUMBER`): some
// engines pass on whatever is open, and a folder of the host is a way out to all of it.
// It needs nothing of a C library, so that it starts in a fraction of the time that a shell takes.

#if defined(__x86_64__)
enum { WRITE = 1, CLOSE = 3, EXECVE = 59, EXIT = 60, WAIT4 = 61, SETSID = 112, PRCTL = 157, OPENAT = 257, CLONE3 = 435 };

static long call(long number, long a, long b, long c, long d, long e) {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                   : "rcx", "r11", "memory");
  return result;
}

__asm__(".globl _start\n_start:\n  mov %rsp, %rdi\n  and $-16, %rsp\n  call begin\n");
#elif defined(__aarch64__)
enum { OPENAT = 56, CLOSE = 57, WRITE = 64, EXIT = 93, SETSID = 157, PRCTL = 167, EXECVE = 221, WAIT4 = 260, CLONE3 = 435 };

static long call(long number, long a, long b, long c, long d, long e) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
  return x0;
}

__asm__(".globl _start\n_start:\n  mov x0, sp\n  bl begin\n");
#endif

enum { FAILED = 125, SIGKILL = 9, SIGCHLD = 17, PR_SET_PDEATHSIG = 1, O_WRONLY = 1, EINTR = 4 };
static const unsigned long long INTO_CGROUP = 0x200000000ULL;

struct clone_arguments {
  unsigned long long flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size,
      cgroup;
};

static void end(long code) {
  for (;;) call(EXIT, code, 0, 0, 0, 0);
}

static void fail(const char *why) {
  long size = 0;
  while (why[size]) size++;
  call(WRITE, 2, (long)why, size, 0, 0);
  end(FAILED);
}

static void require(long result, const char *why) {
  if (result < 0) fail(why);
}

static long number(const char *text) {
  long found = 0;
  for (; *text >= '0' && *text <= '9'; text++) found = found * 10 + *text - '0';
  return *text ? -1 : found;
}

static void become(char **program, char **environment) {
  call(EXECVE, (long)program[0], (long)program, (long)environment, 0, 0);
  fail("enter: the program cannot be executed\n");
}

// Kernels before 5.7 cannot begin a process in a group.
static void move_into(long folder) {
  long file = call(OPENAT, folder, (long)"cgroup.procs", O_WRONLY, 0, 0);
  require(file, "enter: the group cannot be opened\n");
  require(call(WRITE, file, (long)"0", 1, 0, 0), "enter: the group cannot be entered\n");
  call(CLOSE, file, 0, 0, 0, 0);
}

static void close_own(const char *path) {
  const char *last = path;
  for (; *path; path++)
    if (*path == '/') last = path + 1;
  if (number(last) > 2) call(CLOSE, number(last), 0, 0, 0, 0);
}

static void follow(long child) {
  int status = 0;
  long ended;
  while ((ended = call(WAIT4, child, (long)&status, 0, 0, 0)) != child)
    if (ended != -EINTR) fail("enter: the program cannot be waited for\n");
  end((status & 0x7f) ? 128 + (status & 0x7f) : (status >> 8) & 0xff);
}

__attribute__((used)) void begin(long *stack) {
  char **word = (char **)(stack + 1) + 1;
  char **environment = (char **)(stack + 1) + stack[0] + 1;
  if (stack[0] < 4) fail("usage: enter FOLDER FILE... -- PROGRAM ARGUMENT...\n");
  long folder = number(*word++);
  for (; *word && (*word)[0] != '-'; word++) {
    require(call(WRITE, number(*word), (long)"0", 1, 0, 0), "enter: a group cannot be entered\n");
    call(CLOSE, number(*word), 0, 0, 0, 0);
  }
  if (!*word || !*++word) fail("enter: no program\n");
  struct clone_arguments how = {.flags = INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (unsigned long long)folder};
  long child = call(CLONE3, (long)&how, sizeof how, 0, 0, 0);
  if (child > 0) follow(child);
  if (child < 0) {
    move_into(folder);
  } else {
    // A session of its own: should this process be killed, whoever inherits the child may reap it.
    call(SETSID, 0, 0, 0, 0, 0);
    call(PRCTL, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  }
  call(CLOSE, folder, 0, 0, 0, 0);
  close_own((char *)stack[1]);
  become(word, environment);
}
