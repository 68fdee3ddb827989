// SPDX-License-Identifier: Apache-2.0
// Copyright the Casulo authors

// A preloaded statx that leaves AT_NO_AUTOMOUNT out. Releases of gVisor up to the one that Debian 12
// ships refuse that flag, which `ls` and `stat` of the GNU core utilities always give; nothing is ever
// mounted automatically in a sandbox. Without the C library's headers, so that any C compiler will do.

#define NO_AUTOMOUNT 0x800

#if defined(__x86_64__)
#define STATX 332
#elif defined(__aarch64__)
#define STATX 291
#endif

long syscall(long number, ...);

int statx(int directory, const char *path, int flags, unsigned int mask, void *result) {
  return (int)syscall(STATX, directory, path, flags & ~NO_AUTOMOUNT, mask, result);
}
