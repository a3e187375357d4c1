/* SPDX-License-Identifier: Apache-2.0 */
/* Native stacks of another process's threads, by libunwind over ptrace. Each thread stands still while it is walked. */
#ifndef B200_DOCTOR_STACKS_H
#define B200_DOCTOR_STACKS_H

#include "tools/doctor/process.h"

/* Prints every thread with its frames. Returns 0, or the errno with which the first thread could not be stopped (EPERM:
   ptrace is not allowed). */
int stacks_print(const struct process *process);

#endif
