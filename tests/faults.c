/* Fail or interrupt the n-th call that changes a file below a folder; loaded before the C library (LD_PRELOAD).

   All calls of the process count, including those of TensorStore's threads. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { TAKES_SPACE = 1, OTHER = 2 };

static char watched[4096];
static int error_code, signal_number, kinds, lasting;
static long place;
static atomic_long seen;

/* Let call number `at` of the kinds `which` fail with `code`, and with `sticky` all later ones; or send a signal. */
void faults_arm(const char *folder, int which, long at, int code, int sticky, int number) {
    snprintf(watched, sizeof watched, "%s", folder);
    kinds = which, place = at, error_code = code, lasting = sticky, signal_number = number;
    atomic_store(&seen, 0);
}

/* Stop watching, and return the number of calls seen. */
long faults_disarm(void) {
    watched[0] = 0;
    return atomic_load(&seen);
}

static int is_watched(const char *path) {
    return watched[0] && path && strncmp(path, watched, strlen(watched)) == 0;
}

static int strikes(const char *path, int kind) {
    if (!is_watched(path) || !(kind & kinds)) return 0;
    long now = atomic_fetch_add(&seen, 1) + 1;
    if (now != place && !(lasting && now > place)) return 0;
    if (signal_number) {
        kill(getpid(), signal_number);
        return 0;
    }
    errno = error_code;
    return 1;
}

static int strikes_fd(int fd, int kind) {
    char link[64], path[4096];
    if (!watched[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strikes(path, kind);
}

/* A path that is relative to an open directory counts as that directory. */
static int strikes_at(int fd, const char *path, int kind) {
    return path && path[0] != '/' && fd != AT_FDCWD ? strikes_fd(fd, kind) : strikes(path, kind);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(result, name, parameters, arguments, test) \
    result name parameters {                            \
        if (test) return -1;                            \
        return REAL(name) arguments;                    \
    }

WRAP(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), strikes_fd(fd, TAKES_SPACE))
WRAP(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n), strikes_fd(fd, TAKES_SPACE))
WRAP(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t to), (fd, data, size, to),
     strikes_fd(fd, TAKES_SPACE))
WRAP(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t to), (fd, data, size, to),
     strikes_fd(fd, TAKES_SPACE))
WRAP(int, fsync, (int fd), (fd), strikes_fd(fd, OTHER))
WRAP(int, fdatasync, (int fd), (fd), strikes_fd(fd, OTHER))
WRAP(int, ftruncate, (int fd, off_t size), (fd, size), strikes_fd(fd, OTHER))
WRAP(int, ftruncate64, (int fd, off64_t size), (fd, size), strikes_fd(fd, OTHER))
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), strikes(path, TAKES_SPACE))
WRAP(int, mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode), strikes_at(fd, path, TAKES_SPACE))
WRAP(int, rename, (const char *from, const char *to), (from, to), strikes(from, OTHER))
WRAP(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), strikes_at(a, from, OTHER))
WRAP(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags),
     strikes_at(a, from, OTHER))
WRAP(int, link, (const char *from, const char *to), (from, to), strikes(from, OTHER))
WRAP(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags),
     strikes_at(a, from, OTHER))
WRAP(int, unlink, (const char *path), (path), strikes(path, OTHER))
WRAP(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags), strikes_at(fd, path, OTHER))
WRAP(int, rmdir, (const char *path), (path), strikes(path, OTHER))

#define WRAP_OPEN(name, parameters, arguments, test) \
    int name parameters {                            \
        mode_t mode = 0;                             \
        if (flags & (O_CREAT | O_TMPFILE)) {         \
            va_list rest;                            \
            va_start(rest, flags);                   \
            mode = va_arg(rest, mode_t);             \
            va_end(rest);                            \
        }                                            \
        if ((flags & O_CREAT) && (test)) return -1;  \
        return REAL(name) arguments;                 \
    }

WRAP_OPEN(open, (const char *path, int flags, ...), (path, flags, mode), strikes(path, TAKES_SPACE))
WRAP_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode), strikes(path, TAKES_SPACE))
WRAP_OPEN(openat, (int fd, const char *path, int flags, ...), (fd, path, flags, mode), strikes_at(fd, path, TAKES_SPACE))
WRAP_OPEN(openat64, (int fd, const char *path, int flags, ...), (fd, path, flags, mode),
          strikes_at(fd, path, TAKES_SPACE))
