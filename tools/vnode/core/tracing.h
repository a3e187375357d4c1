/* SPDX-License-Identifier: Apache-2.0 */
/* Faults (fault.c) and the call trace (trace.c), as the entry hooks use them. Any thread; no CUDA calls. */
#ifndef VNODE_CORE_TRACING_H
#define VNODE_CORE_TRACING_H

#include "hook.h"

/* The faults of B200OPT_VNODE_FAULT for a function on this rank, in order; NULL: none. They live as long as the process. The
   first call reads the variable and says what is wrong with it. */
const struct vnode_fault *vnode_faults_of(const char *function);
/* Counts a call and applies the faults that it meets: sleeps, hangs, ends the process, sets a sticky error (true), or says
   by `status` what the call returns. */
bool vnode_fault_strike(struct vnode_hook *hook, const struct vnode_fault *faults, int *status);

/* Row of trace.def, "" without one; NULL while there is no trace. */
const char *vnode_trace_format(const char *function);
/* True when the line needs what the call has made. */
bool vnode_trace_is_late(const char *format);
/* Writes the line of a call; a status other than 0 is shown. */
void vnode_trace_call(const struct vnode_call *call, const char *format, int status);

#endif
