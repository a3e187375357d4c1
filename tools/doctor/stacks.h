/* SPDX-License-Identifier: Apache-2.0 */
/* Native stacks of another process's threads, by libunwind over ptrace. Each thread stands still while it is walked. */
#ifndef B200_DOCTOR_STACKS_H
#define B200_DOCTOR_STACKS_H

#include "tools/doctor/process.h"

/* Prints every running thread with its frames. Returns 0, or, when none could be stopped, the errno of the first (EPERM:
   ptrace is not allowed). Signals that arrive meanwhile reach the process afterwards. */
int stacks_print(const struct process *process);

#endif
