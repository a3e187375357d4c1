/* SPDX-License-Identifier: Apache-2.0 */
/* Which Python a command will run, and which PyTorch that has, found without importing it (which takes seconds). */
#ifndef B200_TOOLS_PYTHON_H
#define B200_TOOLS_PYTHON_H

#include <stdbool.h>

/* Path of the Python: of a command that is one (python3.12), of a script's first lines (torchrun), else python3 of PATH.
   NULL when there is none. The caller frees it. */
char *python_of_command(const char *command);

struct python_torch {
  char version[64]; /* "2.9.0+cu130" */
  char cuda[32];    /* "13.0"; "" for a CPU build */
};

/* False: that Python finds no torch (or does not run). */
bool python_find_torch(const char *python, struct python_torch *out);

#endif
