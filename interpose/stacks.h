/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who asked for a block of device memory (B200OPT_MEMORY_STACKS=on): the native stack, by libunwind, and for a call on
 * Python's main thread the Python files and lines.
 *
 * Nothing of Python is touched where memory is allocated: PyTorch is there without the GIL and with its allocator's lock
 * held, and waiting for the GIL could wait for a thread that waits for that lock. Instead Python is asked, by
 * Py_AddPendingCall(), which neither waits nor allocates, to call back when its main thread is between two operations; then
 * that thread has the GIL and stands where the allocating call has come back, as when a signal handler runs. Python looks
 * for such requests after each call of a function, so that the line is that of the call; memory that an operator has asked
 * for (a @ b) may be told with the line of the next call. Only public functions of Python 3.10 and later are used.
 *
 * Without Python, on other threads, when Python is ending or has too many requests: the native stack alone.
 *
 * Thread-safety: any thread. Allocates nothing. State: the requests that wait for Python, at most STACKS_WAITING.
 */
#ifndef B200_STACKS_H
#define B200_STACKS_H

#include <stdint.h>

#include "policy/call.h"

/* Writes a `stack` line, now or when Python calls back. pre: the caller holds no lock of ours. */
void b200_stacks_put(enum b200_owner owner, uint64_t bytes);

/* The process is ending: writes what still waits, with the native stack alone. */
void b200_stacks_end(void);

/* In a forked child: what waits is the parent's. */
void b200_stacks_forget(void);

#endif
