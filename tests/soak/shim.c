/* Faults of files, for the soak test: a library that is loaded before libc (LD_PRELOAD).

   It counts the calls of a process and its children that touch files in one folder. At a given call it lets the
   call fail with an error, once or from then on, or kills a process before the call is made. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, FSYNC = 4, RENAME = 8, UNLINK = 16, MKDIR = 32, READ = 64 };

/* Kept in step with `Control` in processes.py. */
struct control {
    int is_on;
    int kinds;          /* the calls that count */
    int error;          /* errno of the call that fails; 0: kill `victim` before it */
    int is_lasting;     /* whether later calls fail too */
    int victim;
    long target;        /* the number of the call, from 1; 0: count only */
    atomic_long calls;  /* that counted so far */
    atomic_long all[7]; /* of each kind, whether it counts or not */
    char folder[256];
    char path[512];     /* of the call that failed */
};
static struct control *control;

__attribute__((constructor)) static void begin(void) {
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

struct control *soak_control(void) { return control; }

/* Write the path of a file in a folder that is open as `at`; with an empty name, of `at` itself. */
static void locate(int at, const char *name, char *path, size_t size) {
    ssize_t length = 0;
    path[0] = 0;
    if (name[0] != '/') {
        char link[64];
        if (at == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        length = readlink(link, path, size - 1);
        if (length < 0) length = 0;
        path[length] = 0;
    }
    if (name[0]) snprintf(path + length, size - length, "%s%s", length ? "/" : "", name);
}

/* Return whether a call fails, with errno set. */
static int fails(int kind, int at, const char *name) {
    if (!control || !control->is_on) return 0;
    char path[512];
    locate(at, name, path, sizeof path);
    if (strncmp(path, control->folder, strlen(control->folder))) return 0;
    atomic_fetch_add(&control->all[__builtin_ctz(kind)], 1);
    if (!(control->kinds & kind)) return 0;
    long number = atomic_fetch_add(&control->calls, 1) + 1;
    if (!control->target || number < control->target || (number > control->target && !control->is_lasting)) return 0;
    if (number == control->target) strcpy(control->path, path);
    if (!control->error) {
        kill(control->victim, SIGKILL);
        return 0;
    }
    errno = control->error;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPENS(name)                                                                    \
    int name(const char *path, int flags, ...) {                                       \
        va_list rest;                                                                  \
        va_start(rest, flags);                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;        \
        va_end(rest);                                                                  \
        int kind = flags & (O_WRONLY | O_RDWR | O_CREAT) ? OPEN : READ;                \
        return fails(kind, AT_FDCWD, path) ? -1 : REAL(name)(path, flags, mode);       \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                                 \
    int name(int at, const char *path, int flags, ...) {                               \
        va_list rest;                                                                  \
        va_start(rest, flags);                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;        \
        va_end(rest);                                                                  \
        int kind = flags & (O_WRONLY | O_RDWR | O_CREAT) ? OPEN : READ;                \
        return fails(kind, at, path) ? -1 : REAL(name)(at, path, flags, mode);         \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

ssize_t write(int file, const void *bytes, size_t count) {
    return fails(WRITE, file, "") ? -1 : REAL(write)(file, bytes, count);
}
ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t place) {
    return fails(WRITE, file, "") ? -1 : REAL(pwrite64)(file, bytes, count, place);
}
ssize_t read(int file, void *bytes, size_t count) {
    return fails(READ, file, "") ? -1 : REAL(read)(file, bytes, count);
}
ssize_t pread64(int file, void *bytes, size_t count, off64_t place) {
    return fails(READ, file, "") ? -1 : REAL(pread64)(file, bytes, count, place);
}
int fsync(int file) { return fails(FSYNC, file, "") ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return fails(FSYNC, file, "") ? -1 : REAL(fdatasync)(file); }
int rename(const char *from, const char *to) {
    return fails(RENAME, AT_FDCWD, to) ? -1 : REAL(rename)(from, to);
}
int unlink(const char *path) { return fails(UNLINK, AT_FDCWD, path) ? -1 : REAL(unlink)(path); }
int unlinkat(int at, const char *path, int flags) {
    return fails(UNLINK, at, path) ? -1 : REAL(unlinkat)(at, path, flags);
}
int rmdir(const char *path) { return fails(UNLINK, AT_FDCWD, path) ? -1 : REAL(rmdir)(path); }
int mkdir(const char *path, mode_t mode) {
    return fails(MKDIR, AT_FDCWD, path) ? -1 : REAL(mkdir)(path, mode);
}
