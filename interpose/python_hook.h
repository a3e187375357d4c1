/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts the steps of PyTorch's optimizers through the Python that runs in this process (B200OPT_OPTIMIZER_HOOK=1): asks for
 * torch.optim.optimizer.register_optimizer_step_post_hook(), which PyTorch's own profiler uses, with a function of ours that
 * adds one to a counter.
 *
 * Python is found by dlsym() in what is loaded, and only its stable interface is used. The GIL is never waited for: PyTorch
 * calls NCCL without it, perhaps while a thread that has it waits for us. Instead Python is asked, by Py_AddPendingCall(),
 * to run the registration on its main thread when it next gets there; if that never happens, nothing is counted. A process
 * without Python, or whose Python has not imported PyTorch after several tries, is left alone. What Python raises is
 * cleared.
 *
 * A forked child inherits the registration and its counter.
 */
#ifndef B200_PYTHON_HOOK_H
#define B200_PYTHON_HOOK_H

#include <stdint.h>

/* From an application's thread that holds no lock of ours, as often as it likes: one load once it is settled. Does not
   block. `say` tells the user, once, on Python's main thread, when PyTorch has no such hook. */
void b200_python_hook_try(void (*say)(const char *text));

/* Steps so far. Of several optimizers that take turns, one round is one step. */
uint64_t b200_python_hook_steps(void);

#endif
